//! Three `verdict serve` processes over loopback, and three participants in this process.
//!
//! Each user of this file uses a part of it.
#![allow(dead_code, unused_imports, reason = "shared by tests and a benchmark, each with its own needs")]

mod gates;
mod troubles;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, iter,
    net::TcpListener,
    path::PathBuf,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};
use tonic::transport::Server;
use verdict_client::{
    BranchId, Reason, ResourceName, Verdict,
    participant::{ParticipantOptions, Participants, ResourceManager, StreamStatus},
    resource::{
        Reservation,
        memory::{Ledger, Memory},
    },
};
use verdict_proto::v1::participant_server::ParticipantServer;

pub(crate) use gates::Gates;
pub(crate) use troubles::Troubles;

pub(crate) const RESOURCES: [&str; 3] = ["seats", "wallet", "tickets"];

/// A participant's own state: how often each branch was reserved, took effect, was undone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    pub(crate) reserved: BTreeMap<BranchId, u32>,
    pub(crate) confirmed: BTreeMap<BranchId, u32>,
    pub(crate) cancelled: BTreeMap<BranchId, u32>,
}

impl Ledger for Effects {
    /// A payload of "no" is refused, "read" changes nothing, "count" leaves no trace (the state is copied at each call).
    fn reserve(&mut self, branch: BranchId, payload: &[u8]) -> Reservation {
        match payload {
            b"no" => Reservation::Refused(Reason::refused("told to say no", "E42", false)),
            b"read" => Reservation::ReadOnly,
            b"count" => Reservation::Reserved,
            _ => {
                *self.reserved.entry(branch).or_default() += 1;
                Reservation::Reserved
            }
        }
    }

    fn confirm(&mut self, branch: BranchId, payload: &[u8]) {
        if payload != b"count" {
            *self.confirmed.entry(branch).or_default() += 1;
        }
    }

    fn cancel(&mut self, branch: BranchId, payload: &[u8]) {
        if payload != b"count" {
            *self.cancelled.entry(branch).or_default() += 1;
        }
    }
}

/// Wraps a participant, so that a test decides when it answers.
pub(crate) type Wrap = dyn Fn(&str, Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager>;

pub(crate) fn name(resource: &str) -> ResourceName {
    resource.try_into().unwrap()
}

pub(crate) struct Cluster {
    data: TempDir,
    pub(crate) nodes: BTreeMap<u64, String>,
    processes: BTreeMap<u64, Child>,
    pub(crate) participants: BTreeMap<String, Memory<Effects>>,
    /// Of those that are reached by stream.
    pub(crate) attached: BTreeMap<String, Participants>,
    _serving: Vec<JoinHandle<()>>,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(&|_, manager| manager).await
    }

    pub(crate) async fn start_with(wrap: &Wrap) -> Self {
        Self::start_as(wrap, "").await
    }

    /// With these tables in each node's configuration.
    pub(crate) async fn start_as(wrap: &Wrap, tables: &str) -> Self {
        Self::start_all(wrap, tables, &[], &[]).await
    }

    /// All participants are attached by streams.
    pub(crate) async fn start_attached(wrap: &Wrap) -> Self {
        let cluster = Self::start_by_stream(wrap, &RESOURCES, &[]).await;
        cluster.all_attached(cluster.leader().await).await;
        cluster
    }

    /// These of the participants are attached by streams; those are declared so, and nobody is there.
    pub(crate) async fn start_by_stream(wrap: &Wrap, by_stream: &[&str], absent: &[&str]) -> Self {
        Self::start_all(wrap, "", by_stream, absent).await
    }

    async fn start_all(wrap: &Wrap, tables: &str, by_stream: &[&str], absent: &[&str]) -> Self {
        let mut attached = BTreeMap::new();
        let nodes: BTreeMap<u64, String> = (1..=3).zip(free_addresses(3)).collect();
        let mut participants = BTreeMap::new();
        let mut endpoints = BTreeMap::new();
        let mut serving = Vec::new();
        for (name, address) in RESOURCES.into_iter().zip(free_addresses(3)) {
            let memory = Memory::new(Effects::default());
            let manager = wrap(name, Arc::new(memory.open()));
            let verdict = Verdict::new(verdict_client::Options::new(nodes.values().cloned())).unwrap();
            let resource = ResourceName::try_from(name).unwrap();
            participants.insert(name.to_owned(), memory);
            if absent.contains(&name) {
                continue;
            }
            let mut served = Participants::start([(resource, manager)], verdict, ParticipantOptions::default());
            if by_stream.contains(&name) {
                served.attach();
                attached.insert(name.to_owned(), served);
                continue;
            }
            let listen = address.parse().unwrap();
            serving.push(tokio::spawn(async move {
                let service = ParticipantServer::new(served.handlers());
                Server::builder().add_service(service).serve(listen).await.unwrap();
                served.stop().await;
            }));
            endpoints.insert(name, address);
        }
        let data = tempfile::tempdir().unwrap();
        for node in nodes.keys() {
            let mut config = format!(
                "cluster = \"test\"\nnode = {node}\ndata = {:?}\n[nodes]\n",
                data.path().join(format!("data-{node}"))
            );
            for (node, address) in &nodes {
                writeln!(config, "{node} = \"{address}\"").unwrap();
            }
            config.push_str("[resources]\n");
            for (name, address) in &endpoints {
                writeln!(config, "{name} = \"http://{address}\"").unwrap();
            }
            for name in RESOURCES.iter().filter(|name| !endpoints.contains_key(*name)) {
                writeln!(config, "{name} = \"stream\"").unwrap();
            }
            config.push_str(tables);
            fs::write(data.path().join(format!("node-{node}.toml")), config).unwrap();
        }
        let mut cluster = Self { data, nodes, processes: BTreeMap::new(), participants, attached, _serving: serving };
        for node in cluster.nodes.clone().into_keys() {
            cluster.start_node(node);
        }
        cluster.leader().await;
        cluster
    }

    /// Waits until every participant that opens a stream has it to this node.
    pub(crate) async fn all_attached(&self, node: u64) {
        let to = Some(StreamStatus::Attached { node });
        let all = |cluster: &Self| cluster.attached.values().all(|participants| participants.stream() == to);
        self.wait_for("all are attached", all).await;
    }

    /// Another process of this participant: the same database, another stream.
    pub(crate) fn replica(&self, resource: &str, wrap: &Wrap) -> Participants {
        let manager = wrap(resource, Arc::new(self.participants[resource].open()));
        let mut replica =
            Participants::start([(name(resource), manager)], self.client(), ParticipantOptions::default());
        replica.attach();
        replica
    }

    fn file(&self, name: String) -> PathBuf {
        self.data.path().join(name)
    }

    /// A node's configuration file.
    pub(crate) fn config(&self, node: u64) -> PathBuf {
        self.file(format!("node-{node}.toml"))
    }

    pub(crate) fn start_node(&mut self, node: u64) {
        let log = fs::File::options().create(true).append(true).open(self.file(format!("node-{node}.log"))).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_verdict"))
            .args(["serve", "--config"])
            .arg(self.file(format!("node-{node}.toml")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.processes.insert(node, child);
    }

    /// Kills a node as `kill -9` does.
    pub(crate) fn kill(&mut self, node: u64) {
        let mut child = self.processes.remove(&node).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks a node to stop, as an operator does, and waits until it has.
    pub(crate) async fn stop(&mut self, node: u64) -> ExitStatus {
        kill_process(self.pid(node), Signal::TERM).unwrap();
        let mut child = self.processes.remove(&node).unwrap();
        tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap()
    }

    /// Stops a node from running, or lets it run on.
    pub(crate) fn pause(&self, node: u64, pause: bool) {
        let signal = if pause { Signal::STOP } else { Signal::CONT };
        kill_process(self.pid(node), signal).unwrap();
    }

    pub(crate) fn pid(&self, node: u64) -> Pid {
        Pid::from_child(&self.processes[&node])
    }

    pub(crate) fn client(&self) -> Verdict {
        Verdict::new(verdict_client::Options::new(self.nodes.values().cloned())).unwrap()
    }

    /// A client that knows one node only.
    pub(crate) fn client_of(&self, node: u64) -> Verdict {
        Verdict::new(verdict_client::Options::new([self.nodes[&node].clone()])).unwrap()
    }

    /// Waits until a running node says that it leads, and returns it.
    pub(crate) async fn leader(&self) -> u64 {
        let by = Instant::now() + Duration::from_secs(20);
        loop {
            for node in self.processes.keys() {
                let asked = self.client_of(*node).with_deadline(Duration::from_millis(300)).cluster_status().await;
                if asked.is_ok_and(|status| status.leader == Some(*node) && status.cluster.is_some()) {
                    return *node;
                }
            }
            assert!(Instant::now() < by, "no leader after 20 s; see {}", self.logs());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn last_index(&self) -> u64 {
        self.client().cluster_status().await.unwrap().last_index
    }

    /// Processor time of all nodes.
    pub(crate) fn cpu(&self) -> Duration {
        let ticks = |child: &Child| -> u64 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        };
        // Linux counts in hundredths of a second.
        Duration::from_millis(self.processes.values().map(ticks).sum::<u64>() * 10)
    }

    pub(crate) fn effects(&self, resource: &str) -> Effects {
        self.participants[resource].ledger()
    }

    /// Waits until `condition` holds of this cluster.
    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let by = Instant::now() + Duration::from_secs(20);
        while !condition(self) {
            assert!(Instant::now() < by, "not within 20 s: {what}; see {}", self.logs());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the nodes logged.
    pub(crate) fn logs(&self) -> String {
        let logs = self.nodes.keys().map(|node| {
            let text = fs::read_to_string(self.file(format!("node-{node}.log"))).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(15).collect();
            format!("node {node}:\n{}\n", tail.into_iter().rev().collect::<Vec<_>>().join("\n"))
        });
        logs.collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.processes.values_mut() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Addresses that nobody listens at, each another. They lie below the ports that connections are given: one of those could
/// have taken it by the time that its node listens.
pub(crate) fn free_addresses(count: usize) -> Vec<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Another place for each test that runs beside this one.
    let first = process::id().wrapping_mul(7_919);
    let ports = iter::repeat_with(|| 10_000 + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000);
    let addresses = ports.map(|port| format!("127.0.0.1:{port}"));
    addresses.filter(|address| TcpListener::bind(address).is_ok()).take(count).collect()
}
