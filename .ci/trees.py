"""What `cargo tree` can tell: no simulator in production, our crates use no real runtime in simulation, licences as in deny.toml."""

import json
import os
import re
import subprocess
import sys

PRODUCTION = ["verdict-server", "verdict-client", "verdict-raft-log", "verdict-protocol", "verdict-proto"]


def tree(packages, simulated):
    flags = [part for package in packages for part in ("-p", package)]
    env = dict(os.environ, RUSTFLAGS="--cfg madsim" if simulated else "")
    command = ["cargo", "tree", "--locked", "-e", "normal", "--prefix", "none", "-f", "{p} {f}", *flags]
    lines = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[0]: line for line in lines if line.strip()}


def users(name):
    """Who depends on this package in the simulated tree, directly."""
    env = dict(os.environ, RUSTFLAGS="--cfg madsim")
    version = "tokio@1" if name == "tokio" else "tonic@0.14"
    command = ["cargo", "tree", "--locked", "-e", "normal", "--prefix", "depth", "-p", "verdict-sim-tests", "-i", version, "--depth", "1"]
    lines = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    return [line[1:].split()[0] for line in lines if line.startswith("1")]


def main():
    failures = []
    production = tree(PRODUCTION, simulated=False)
    failures += [f"{name} is in the production tree" for name in production if name.startswith("madsim")]

    simulated = tree(["verdict-sim-tests"], simulated=True)
    # The simulator's own crates build upon the real ones, for types, channels and locks; ours and Raft's must not.
    for name in ("tokio", "tonic"):
        for user in users(name):
            if user.startswith("verdict-") or user in ("openraft", "openraft-rt"):
                failures.append(f"{user} uses the real {name} in simulation: name the simulated one in its two target tables")
    failures += [f"{name} is in the simulated tree" for name in ("rusqlite", "mysql_async", "tokio-postgres", "tonic-health", "tonic-reflection") if name in simulated]

    deny = open("deny.toml", encoding="utf-8").read()
    allowed = set(re.findall(r'"([^"]+)"', re.search(r"allow = \[(.*?)\]", deny, re.S).group(1)))
    metadata = json.loads(subprocess.run(["cargo", "metadata", "--locked", "--format-version", "1"], check=True, capture_output=True, text=True).stdout)
    for package in metadata["packages"]:
        if not satisfied(package["license"] or "", allowed):
            failures.append(f"{package['name']} has the licence {package['license']}, which deny.toml does not allow")

    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"trees: {len(production)} packages in production, {len(simulated)} in simulation, {len(metadata['packages'])} licences")
    return 1 if failures else 0


def satisfied(expression, allowed):
    """Whether an SPDX expression can be met. OR binds weaker than AND; parentheses as cargo's packages use them."""
    expression = expression.replace("/", " OR ").strip()
    inner = re.search(r"\(([^()]*)\)", expression)
    if inner:
        value = "@yes" if satisfied(inner.group(1), allowed) else "@no"
        return satisfied(expression[: inner.start()] + value + expression[inner.end():], allowed)
    return any(
        all(term.strip() == "@yes" or term.strip() in allowed for term in choice.split(" AND "))
        for choice in expression.split(" OR ")
    )


if __name__ == "__main__":
    sys.exit(main())
