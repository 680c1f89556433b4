"""Talks to a cluster from another language, with nothing but gRPC reflection: begin, enlist, commit, get.

Usage: smoke.py PATH_OF_THE_VERDICT_BINARY

It starts three nodes, is itself the participant, and checks the outcome there. Needs grpcio and grpcio-reflection.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent import futures
from pathlib import Path

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Api:
    """The services of one address, as reflection describes them."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self.channel).result(timeout=20)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def message(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"verdict.v1.{name}"))

    def method(self, service, name):
        return self.pool.FindServiceByName(f"verdict.v1.{service}").methods_by_name[name]

    def call(self, service, name, **fields):
        method = self.method(service, name)
        request = message_factory.GetMessageClass(method.input_type)
        reply = message_factory.GetMessageClass(method.output_type)
        stub = self.channel.unary_unary(
            f"/verdict.v1.{service}/{name}", request_serializer=request.SerializeToString, response_deserializer=reply.FromString
        )
        return stub(request(**fields), timeout=10)


class Participant:
    """Keeps what it was told, by branch."""

    def __init__(self, address):
        self.told = {}
        self.api = None
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers([self])
        self.server.add_insecure_port(address)
        self.server.start()

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]
        method = self.api.method("Participant", name)
        request = message_factory.GetMessageClass(method.input_type)
        reply = message_factory.GetMessageClass(method.output_type)

        def answer(message, _):
            key = (message.branch.xid, message.branch.number)
            if name == "Prepare":
                no = message.payload == b"no"
                self.told.setdefault(key, []).append("refused" if no else "prepared")
                return reply(vote=3 if no else 1)
            self.told.setdefault(key, []).append(name)
            return reply(settlement=1)

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request.FromString, response_serializer=reply.SerializeToString
        )


def new_xid():
    """UUIDv7: the birth time in milliseconds, the version, the variant, the rest random."""
    xid = bytearray(int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10))
    xid[6] = xid[6] & 0x0F | 0x70
    xid[8] = xid[8] & 0x3F | 0x80
    return bytes(xid)


def wait_for(what, condition, seconds=20):
    by = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < by, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def main(binary):
    folder = Path(tempfile.mkdtemp(prefix="verdict-smoke-"))
    nodes = {number: f"127.0.0.1:{free_port()}" for number in (1, 2, 3)}
    branch = f"127.0.0.1:{free_port()}"
    participant = Participant(branch)
    processes = []
    try:
        for number in nodes:
            config = folder / f"node-{number}.toml"
            lines = ['cluster = "smoke"', f"node = {number}", f'data = "{folder / str(number)}"', "[nodes]"]
            lines += [f'{other} = "{address}"' for other, address in nodes.items()]
            lines += ["[resources]", f'ledger = "http://{branch}"']
            config.write_text("\n".join(lines) + "\n")
            log = open(folder / f"node-{number}.log", "w")
            processes.append(subprocess.Popen([binary, "serve", "--config", config], stderr=log, stdin=subprocess.DEVNULL))

        apis = {number: Api(address) for number, address in nodes.items()}
        participant.api = apis[1]
        assert "verdict.v1.Transactions" in apis[1].database.get_services()
        wait_for("a leader", lambda: apis[1].call("Operator", "ClusterStatus").cluster)

        # Each call goes to another node: any node takes any call.
        xid = new_xid()
        assert apis[1].call("Transactions", "Begin", xid=xid).state == 1
        work = apis[2].message("Branch")(number=1, resource="ledger", payload=b"debit 5")
        assert len(apis[2].call("Transactions", "Enlist", xid=xid, branches=[work]).branches) == 1
        committed = apis[3].call("Transactions", "Commit", xid=xid)
        assert committed.outcome == 1, committed
        assert apis[1].call("Transactions", "Get", xid=xid).outcome == 1
        wait_for("the branch is told", lambda: participant.told.get((xid, 1), [])[-1:] == ["Commit"])
        assert participant.told[xid, 1][0] == "prepared"

        refused = new_xid()
        no = apis[1].message("Branch")(number=1, resource="ledger", payload=b"no")
        aborted = apis[1].call("Transactions", "Commit", xid=refused, branches=[no])
        assert aborted.outcome == 2 and aborted.reason.code == "REFUSED", aborted

        health = apis[1].channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
        assert health == b"\x08\x01", f"not SERVING: {health}"
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            assert process.wait(timeout=20) == 0, f"exit code {process.returncode}"
        print("smoke: begin, enlist, commit, get and a refusal from Python through reflection; health; SIGTERM: ok")
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        raise
    finally:
        for process in processes:
            process.kill()
            process.wait()
        participant.server.stop(0)


if __name__ == "__main__":
    main(sys.argv[1])
