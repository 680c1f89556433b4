//! A configuration that is missing or wrong stops the node with an error that names the key (s65). Each case is a
//! real process.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{fs, process::Command};

const GOOD: &str = "\
cluster = \"test\"
node = 1
data = \"data\"
[nodes]
1 = \"127.0.0.1:1\"
";

/// Runs a node with this configuration, which must not start, and returns its exit code and what it said.
fn refused(config: &str, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.toml");
    fs::write(&path, config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_verdict"))
        .args(["serve", "--config"])
        .arg(&path)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!folder.path().join("data").exists(), "it touched its data: {said}");
    (output.status.code(), said.replace(&folder.path().display().to_string(), ""))
}

#[test]
fn s65_each_wrong_key_is_named_with_what_to_do() {
    let with = |line: &str| format!("{line}\n{GOOD}");
    let without = |line: &str| GOOD.replace(&format!("{line}\n"), "");
    let below = |lines: &str| format!("{GOOD}{lines}\n");
    let database = |first: &str, line: &str| {
        below(&format!("[resources]\nshop = \"postgres\"\n[databases]\n{first}\n[databases.shop]\n{line}"))
    };
    let cases = [
        (without("cluster = \"test\""), "/node.toml: cluster: is missing: write the cluster's name"),
        (without("node = 1"), "/node.toml: node: is missing: write this node's number"),
        (without("data = \"data\""), "/node.toml: data: is missing: write the folder"),
        (GOOD.replace("[nodes]\n1 = \"127.0.0.1:1\"\n", ""), "/node.toml: nodes: is missing: write [nodes]"),
        (with("nods = 1"), "/node.toml: nods: there is no such key: remove it or correct its name; there are cluster"),
        (below("[timeouts]\nvote = 1"), "timeouts.vote: there is no such key"),
        (below("[timeouts]\nvote = 1"), "there are timeouts.vote_ms, timeouts.max_vote_ms"),
        (below("[timeout]\nvote_ms = 1"), "/node.toml: timeout: there is no such key"),
        (with("timeouts = 3"), "timeouts: is a table: write [timeouts] and its keys below, not 3"),
        (
            GOOD.replace("node = 1", "node = \"one\""),
            "node: must be a whole number, not below 0, but it is the text \"one\"",
        ),
        (GOOD.replace("node = 1", "node = -1"), "node: must be a whole number, not below 0, but it is -1"),
        (GOOD.replace("\"test\"", "7"), "cluster: must be a text in quotes, but it is 7"),
        (GOOD.replace("\"test\"", "\"\""), "cluster: a name of 1 to 64 bytes"),
        (GOOD.replace("node = 1", "node = 2"), "node: node 2 has no address in [nodes]: add it"),
        (below("0 = \"127.0.0.1:2\""), "nodes: nodes are numbered from 1"),
        (below("two = \"127.0.0.1:2\""), "nodes.two: nodes are numbered: 1 = \"host:port\""),
        (below("2 = \"127.0.0.1:1\""), "nodes: two nodes have the address 127.0.0.1:1"),
        (below("2 = \"127.0.0.1\""), "nodes.2: \"127.0.0.1\" is no address: write host:port"),
        (below("2 = \"10.0.0.2:7401\""), "nodes.2: 10.0.0.2:7401 is not on this machine"),
        (below("2 = \"10.0.0.2:7401\""), "insecure = true"),
        (database("", ""), "databases.shop.dsn_file: is missing: write the name of a file with the connection string"),
        (database("", "dsn = \"secret\""), "databases.shop.dsn: may hold a password, which is not for this file"),
        (database("", "dsn_file = \"none\""), "databases.shop.dsn_file: /none cannot be read: No such file"),
        (database("", "dsn_file = \"node.toml\""), "databases.shop.dsn_file: is no connection string of PostgreSQL"),
        (database("", "sweep_ms = 0"), "databases.shop.sweep_ms: is in milliseconds, from 1 to a year, but it is 0"),
        (database("", "password = 1"), "databases.shop.password: there is no such key"),
        (database("", "password = 1"), "there are databases.shop.identity, databases.shop.sweep_ms"),
        (database("bank = 1", ""), "databases.bank: is a table: write [databases.bank] and its keys below, not 1"),
        (
            below("[databases.bank]\nsweep_ms = 9"),
            "databases.bank: is no resource that is a database: write bank = \"postgres\", or \"mariadb\", in [resources]",
        ),
        (with("listen = \"0.0.0.0:7401\""), "listen: 0.0.0.0:7401 is not on this machine"),
        (with("listen = \"nowhere\""), "listen: \"nowhere\" is no address"),
        (with("insecure = 1"), "insecure: must be true or false, but it is 1"),
        (below("[resources]\nSeats = \"http://127.0.0.1:2\""), "resources.Seats: a resource name is 1 to 64 of a-z"),
        (
            below("[resources]\nseats = \"127.0.0.1:2\""),
            "resources.seats: \"127.0.0.1:2\" is no endpoint: write http://",
        ),
        (
            below("[resources]\nseats = \"streams\""),
            "stream if the participant opens a stream itself, or postgres or mariadb",
        ),
        (below("[resources]\nseats = \"Stream\""), "resources.seats: \"Stream\" is no endpoint"),
        (below("[resources]\nseats = true"), "resources.seats: must be a text in quotes, but it is true"),
        (
            below("[resources]\nseats = \"https://127.0.0.1:2\""),
            "resources.seats: \"https://127.0.0.1:2\" asks for TLS",
        ),
        (below("[resources]\nseats = \"http://db.example:2\""), "resources.seats: db.example:2 is not on this machine"),
        (below("[timeouts]\nvote_ms = 0"), "timeouts.vote_ms: must be above 0"),
        (below("[timeouts]\nvote_ms = 90000"), "timeouts.vote_ms: must be from 1 to timeouts.max_vote_ms"),
        (below("[timeouts]\ngrace_ms = 1000"), "timeouts.grace_ms: must be above timeouts.max_vote_ms"),
        (
            below("[timeouts]\ntransaction_ms = 99999999999999"),
            "timeouts.transaction_ms: is in milliseconds and at most a year",
        ),
        (below("[limits]\ncalls = 0"), "limits.calls: must be above 0"),
        (below("[limits]\nopen = 1.5"), "limits.open: must be a whole number, not below 0, but it is 1.5"),
        (below("[log]\nheartbeat_ms = 5000"), "log.heartbeat_ms: must be at most half of log.election_min_ms"),
        (below("[log]\nelection_min_ms = 5000"), "log.election_max_ms: must be above log.election_min_ms"),
        (below("[retention]\noutcomes_ms = 0"), "retention.outcomes_ms: must be above 0"),
        ("cluster = ".to_owned(), "/node.toml: is no TOML"),
    ];
    for (config, expected) in cases {
        let (code, said) = refused(&config, &[]);
        assert!(said.contains(expected), "expected {expected:?}, was told {said:?} for:\n{config}");
        assert_eq!(code, Some(2), "{said}");
    }
}

#[test]
fn s65_a_variable_is_as_strict_as_the_file_and_is_named() {
    for (name, value, expected) in [
        ("VERDICT_NODE", "two", "VERDICT_NODE: node: must be a whole number, not below 0, but it is the text \"two\""),
        ("VERDICT_NODE", "2", "VERDICT_NODE: node: node 2 has no address in [nodes]"),
        ("VERDICT_TIMEOUTS__VOTE_MS", "0", "VERDICT_TIMEOUTS__VOTE_MS: timeouts.vote_ms: must be above 0"),
        ("VERDICT_TIMEOUT__VOTE_MS", "5", "timeout.vote_ms: there is no such key: unset VERDICT_TIMEOUT__VOTE_MS"),
        ("VERDICT_DATA", "", "VERDICT_DATA: data: is missing"),
        ("VERDICT_INSECURE", "yes", "VERDICT_INSECURE: insecure: must be true or false"),
        ("VERDICT_NODES__2", "10.0.0.2:1", "VERDICT_NODES__2: nodes.2: 10.0.0.2:1 is not on this machine"),
        ("VERDICT_RESOURCES__SEATS", "x", "VERDICT_RESOURCES__SEATS: resources.seats: \"x\" is no endpoint"),
        ("VERDICT_LOG", "=[", "VERDICT_LOG: \"=[\" is no filter"),
    ] {
        let (code, said) = refused(GOOD, &[(name, value)]);
        assert!(said.contains(expected), "expected {expected:?}, was told {said:?}");
        assert!(code == Some(2), "{name}: {code:?}");
    }
}

#[test]
fn s65_a_connection_string_is_judged_and_never_shown() {
    for (dsn, expected) in [
        ("host=10.0.0.9 user=a dbname=b password=secret", "10.0.0.9 is not on this machine"),
        ("host=127.0.0.1 user=a dbname=b pasword=secret", "is no connection string of PostgreSQL"),
        ("postgres://a:secret@127.0.0.1:port/b", "is no connection string of PostgreSQL"),
        ("host=127.0.0.1 dbname=b password=secret", "names no user"),
        ("host=127.0.0.1 user=a password=secret", "names no dbname"),
        ("host=127.0.0.1 user=a dbname=b password=secret sslmode=require", "asks for TLS"),
    ] {
        let (code, said) =
            refused(GOOD, &[("VERDICT_RESOURCES__SHOP", "postgres"), ("VERDICT_DATABASES__SHOP__DSN", dsn)]);
        assert!(said.contains("VERDICT_DATABASES__SHOP__DSN: databases.shop.dsn: "), "{said}");
        assert!(said.contains(expected) && !said.contains("secret"), "expected {expected:?}, was told {said:?}");
        assert_eq!(code, Some(2));
    }
}

#[test]
fn s65_a_url_is_judged_and_never_shown() {
    for (url, expected) in [
        ("mysql://a:secret@10.0.0.9/b", "10.0.0.9 is not on this machine"),
        ("host=127.0.0.1 user=a dbname=b password=secret", "is no URL of MariaDB's or MySQL's"),
        ("mysql://a:secret@127.0.0.1:port/b", "is no URL of MariaDB's or MySQL's"),
        ("mysql://127.0.0.1/b", "names no user"),
        ("mysql://a:secret@127.0.0.1", "names no database"),
        ("mysql://a:secret@127.0.0.1/b?require_ssl=true", "asks for TLS"),
    ] {
        for brand in ["mariadb", "mysql"] {
            let (code, said) =
                refused(GOOD, &[("VERDICT_RESOURCES__SHOP", brand), ("VERDICT_DATABASES__SHOP__DSN", url)]);
            assert!(said.contains("VERDICT_DATABASES__SHOP__DSN: databases.shop.dsn: "), "{said}");
            assert!(said.contains(expected) && !said.contains("secret"), "expected {expected:?}, was told {said:?}");
            assert_eq!(code, Some(2));
        }
    }
}

#[test]
fn s65_a_name_that_no_branch_can_bear_is_refused() {
    let named = |length: usize, brand: &str| {
        let name = "r".repeat(length);
        let dsn = if brand == "postgres" { "host=10.0.0.9 user=a dbname=b" } else { "mysql://a@10.0.0.9/b" };
        let resources = format!("[resources]\n{name} = \"{brand}\"\n");
        let dsn_of = format!("VERDICT_DATABASES__{}__DSN", name.to_ascii_uppercase());
        refused(&format!("{GOOD}{resources}"), &[(&dsn_of, dsn)])
    };
    for (length, brand, expected) in [
        (61, "mariadb", "an XA name has room for 60 bytes of it, and it has 61"),
        (60, "mariadb", "10.0.0.9 is not on this machine"),
        (64, "postgres", "10.0.0.9 is not on this machine"),
        (65, "postgres", "1 to 64"),
    ] {
        let (code, said) = named(length, brand);
        assert!(code == Some(2) && said.contains(expected), "expected {expected:?}, was told {said:?}");
    }
}

#[test]
fn s65_without_a_configuration_nothing_starts() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_verdict")).args(arguments).env_clear().output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["serve"]);
    assert!(code == Some(2) && said.contains("--config"), "{said}");
    let (code, said) = run(&["serve", "--config", "/nowhere/node.toml"]);
    assert!(code == Some(2) && said.contains("/nowhere/node.toml: cannot be read: No such file"), "{said}");
}
