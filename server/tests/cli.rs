//! The command line against one real node.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::{
    v1::{self, server_reflection_client::ServerReflectionClient},
    v1alpha::{self, server_reflection_client::ServerReflectionClient as AlphaClient},
};

/// Of 2023.
const OLD: &str = "018bcfe5-687b-7000-8000-000000000001";

/// A cluster of one node, killed when dropped.
struct Node {
    folder: tempfile::TempDir,
    address: String,
    process: Child,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        write_config(&folder.path().join("node.toml"), &address);
        let process = serve(folder.path(), "node.toml").stderr(Stdio::null()).spawn().unwrap();
        let mut node = Self { folder, address, process };
        let by = Instant::now() + Duration::from_secs(20);
        while node.json(&["cluster", "status"])["leader"] != 1 {
            assert!(Instant::now() < by && node.process.try_wait().unwrap().is_none(), "the node does not lead");
            sleep(Duration::from_millis(20));
        }
        node
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let node = ["--node", &self.address, "--timeout", "2s"];
        command().args(arguments).args(node).output().unwrap()
    }

    /// What the command prints with `-o json`; null if it prints nothing.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    fn text(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.run(arguments).stdout).unwrap()
    }

    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn write_config(path: &Path, address: &str) {
    let config = format!("cluster = \"test\"\nnode = 1\ndata = \"data\"\n[nodes]\n1 = \"{address}\"\n");
    fs::write(path, config).unwrap();
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verdict"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn serve(folder: &Path, config: &str) -> Command {
    let mut command = command();
    command.args(["serve", "--config"]).arg(folder.join(config));
    command
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn questions_are_answered_for_people_and_for_programs() {
    let node = Node::start();

    let status = node.json(&["cluster", "status"]);
    assert_eq!(status["answered_by"], 1);
    assert_eq!(status["in_doubt"], 0);
    assert_eq!(status["nodes"][0]["address"], node.address);
    assert_eq!(status["nodes"][0]["role"], "leader");
    let text = node.text(&["cluster", "status"]);
    assert!(text.contains("node 1 leads") && text.contains("0 open, 0 in doubt, 0 ended"), "{text}");

    assert_eq!(node.json(&["tx", "list"]), serde_json::json!({ "transactions": [], "more": false }));
    assert_eq!(node.text(&["tx", "list", "--in-doubt", "--older-than", "1s"]), "no transactions\n");

    let expired = node.run(&["tx", "show", OLD]);
    assert_eq!(expired.status.code(), Some(4));
    assert!(said(&expired).contains("will not commit from now on"), "{}", said(&expired));
    let view = node.json(&["tx", "show", OLD]);
    assert!(view["xid"] == OLD && view["state"] == "EXPIRED" && view["outcome"].is_null(), "{view}");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let options = verdict_client::Options::new([node.address.clone()]);
        let verdict = verdict_client::Verdict::new(options).unwrap();
        let unknown = node.run(&["tx", "show", &verdict.new_xid().to_string()]);
        assert_eq!(unknown.status.code(), Some(4));
        assert!(said(&unknown).contains("knows no such transaction"), "{}", said(&unknown));

        let xid = verdict.begin(Duration::from_secs(60)).await.unwrap().xid();
        assert_eq!(node.json(&["tx", "show", &xid.to_string()])["state"], "ACTIVE");
        assert_eq!(node.json(&["tx", "list"])["transactions"][0]["xid"], xid.to_string());
        assert!(node.text(&["tx", "list"]).contains(&xid.to_string()));
        verdict.resume(xid).rollback("changed my mind").await.unwrap();
        let view = node.json(&["tx", "show", &xid.to_string()]);
        assert!(view["outcome"] == "ABORTED" && view["reason"]["code"] == "ROLLBACK", "{view}");
        let text = node.text(&["tx", "show", &xid.to_string()]);
        assert!(text.contains("ABORTED") && text.contains("changed my mind"), "{text}");
    });
}

#[test]
fn what_is_wrong_is_told_by_the_exit_code() {
    // A port on which nobody listens.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let silent = command().args(["tx", "list", "--node", &nobody, "--timeout", "200ms"]).output().unwrap();
    assert_eq!(silent.status.code(), Some(3), "{}", said(&silent));
    assert!(said(&silent).contains("no answer within"), "{}", said(&silent));

    for arguments in [
        &["tx", "show", "not-an-xid"][..],
        &["tx", "list", "--node", "nowhere"],
        &["tx", "list", "--limit", "0"],
        &["tx", "list", "--timeout", "5"],
        &["tx"],
        &["participant", "--kind", "boats"],
        &["demo", "--bookings", "/nowhere.csv"],
    ] {
        let output = command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
    let help = command().arg("--help").output().unwrap();
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("Exit codes"));
}

#[test]
fn a_second_node_in_the_same_place_says_what_to_do() {
    let node = Node::start();
    let same = serve(node.folder.path(), "node.toml").output().unwrap();
    assert_eq!(same.status.code(), Some(1));
    assert!(said(&same).contains(&format!("{} is in use", node.address)), "{}", said(&same));

    let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    write_config(&node.folder.path().join("other.toml"), &other);
    let locked = serve(node.folder.path(), "other.toml").output().unwrap();
    assert_eq!(locked.status.code(), Some(1));
    assert!(said(&locked).contains("data") && said(&locked).contains("another process"), "{}", said(&locked));
}

#[test]
fn s66_a_signal_stops_a_node_in_good_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut node = Node::start();
        let asked = Instant::now();
        kill_process(Pid::from_child(&node.process), signal).unwrap();
        let status = node.process.wait().unwrap();
        assert!(status.success(), "{signal:?}: {status}");
        assert!(asked.elapsed() < Duration::from_secs(10), "{signal:?}: {:?}", asked.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_are_served() {
    let node = tokio::task::spawn_blocking(Node::start).await.unwrap();
    let mut health = HealthClient::new(node.channel().await);
    for service in ["", "verdict.v1.Transactions"] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
        // SERVING.
        assert_eq!(answer.into_inner().status, 1, "{service:?}");
    }
    assert_eq!(
        health.check(HealthCheckRequest { service: "nothing".to_owned() }).await.unwrap_err().code(),
        tonic::Code::NotFound
    );

    let mut names = Vec::new();
    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let answers = ServerReflectionClient::new(node.channel().await)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .unwrap();
    if let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) =
        answers.into_inner().message().await.unwrap().unwrap().message_response
    {
        names.extend(list.service.into_iter().map(|service| service.name));
    }
    for service in ["Transactions", "Branches", "Operator"] {
        assert!(names.contains(&format!("verdict.v1.{service}")), "{names:?}");
    }

    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            "verdict.v1.Transactions".to_owned(),
        )),
    };
    let answers =
        AlphaClient::new(node.channel().await).server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap().message_response;
    assert!(
        matches!(answer, Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))),
        "{answer:?}"
    );
}

/// What the command prints is read as it comes.
#[test]
fn steps_are_followed_line_by_line() {
    let node = Node::start();
    let watch = |arguments: &[&str]| {
        let node = ["--node", &node.address, "--timeout", "2s"];
        let watch = command().args(["tx", "watch"]).args(arguments).args(node).stdout(Stdio::piped()).spawn();
        Watching(watch.unwrap())
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let xid = runtime.block_on(async {
        let verdict = verdict_client::Verdict::new(verdict_client::Options::new([node.address.clone()])).unwrap();
        let begun = verdict.begin(Duration::from_secs(60)).await.unwrap();
        begun.rollback("changed my mind").await.unwrap();
        begun.xid().to_string()
    });
    let lines = watch(&["--after", "0", "-o", "json"]).lines(3);
    let views: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(views.iter().all(|view| view["event"] == "transition" && view["xid"] == xid), "{views:?}");
    assert_eq!(views.iter().map(|view| &view["step"]).collect::<Vec<_>>(), ["BEGUN", "DECIDED", "ENDED"]);
    assert!(views[1]["outcome"] == "ABORTED" && views[1]["reason"]["code"] == "ROLLBACK", "{views:?}");
    assert!(views[1]["index"] == views[2]["index"] && views[2]["number"] == 2, "{views:?}");
    let from_now_on: Value = serde_json::from_str(&watch(&["-o", "json"]).lines(1)[0]).unwrap();
    assert_eq!(from_now_on, serde_json::json!({ "event": "mark", "index": views[2]["index"] }));

    let lines = watch(&["--after", "0", "--outcome", "aborted"]).lines(1);
    assert!(lines[0].contains(&xid) && lines[0].contains("DECIDED") && lines[0].contains("changed my mind"));
    for arguments in [&["--xid", "nonsense"][..], &["--after", "-1"], &["--resource", "No!"]] {
        let output = node.run(&[&["tx", "watch"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", said(&output));
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let silent = command().args(["tx", "watch", "--node", &nobody, "--timeout", "200ms"]).output().unwrap();
    assert_eq!(silent.status.code(), Some(3), "{}", said(&silent));
}

/// A command that goes on until nobody reads it.
struct Watching(Child);

impl Watching {
    fn lines(mut self, count: usize) -> Vec<String> {
        let lines = std::io::BufRead::lines(std::io::BufReader::new(self.0.stdout.take().unwrap()));
        lines.take(count).map(Result::unwrap).collect()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
