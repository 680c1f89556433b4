//! The demo's processes: three nodes and the participants, all this same program, and servers of databases, on loopback.
//!
//! None outlives the demo: a dropped child is killed, the kernel kills it when the demo is killed, and one of this program
//! ends by itself when the pipe on its standard input is closed.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::File,
    io::{self, Write as _},
    net::TcpListener,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use futures_util::future::try_join_all;
use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;
use tokio::{
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use super::databases::{Brand, Run, Server, ServerError, Stock};
use crate::participant::Kind;

/// How long a process may take to end when it is asked to.
const STOP_WITHIN: Duration = Duration::from_secs(15);

/// Below the ports that systems give to outgoing connections, one of which would block a node that comes back.
const PORTS: std::ops::Range<u64> = 20_000..32_000;

#[derive(Debug, Error)]
pub(crate) enum FleetError {
    #[error("{}: cannot be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("this program's own file is not known")]
    Program(#[source] io::Error),
    #[error("no six free ports on 127.0.0.1 from {} to {}", PORTS.start, PORTS.end)]
    Ports,
    #[error("{name} does not start")]
    Spawn {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("{name} cannot be sent {signal}")]
    Signal {
        name: String,
        signal: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{name} ended by itself, {status}; its log, {}, ends with:\n{tail}", log.display())]
    Ended { name: String, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{name} did not end within {STOP_WITHIN:?} of being asked to")]
    Stuck { name: String },
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// A process: where it is in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// By its number, from 1.
    Node(u64),
    Participant(Kind),
    /// The server of the database that keeps it.
    Server(Kind),
}

#[derive(Debug)]
struct Member {
    who: Who,
    name: String,
    run: Run,
    log: PathBuf,
    child: Option<Child>,
    /// Its closing tells the child that the demo is gone; waiting for a child would close one that it still holds.
    lifeline: Option<ChildStdin>,
}

#[derive(Debug)]
pub(super) struct Fleet {
    members: Vec<Member>,
    nodes: Vec<String>,
    /// Where whatever keeps a kind of parts listens.
    services: Vec<(Kind, String)>,
    databases: Vec<(Kind, PathBuf)>,
    servers: Vec<Server>,
}

impl Fleet {
    /// Lays out the files of all processes in `dir`; starts none. The first kinds of parts are kept by servers of these
    /// brands, with so many bookings at a time.
    pub(super) fn lay_out(dir: &Path, seed: u64, brands: &[Brand], bookings: u16) -> Result<Self, FleetError> {
        let program = std::env::current_exe().map_err(FleetError::Program)?;
        let ports = free_ports(6, seed)?;
        let address = |port: &u16| format!("127.0.0.1:{port}");
        let nodes: Vec<String> = ports[..3].iter().map(address).collect();
        let services: Vec<(Kind, String)> = Kind::ALL.into_iter().zip(ports[3..].iter().map(address)).collect();
        let (members, databases) = (Vec::new(), Vec::new());
        let mut fleet = Self { members, nodes, services: services.clone(), databases, servers: Vec::new() };
        for ((stock, brand), port) in Stock::ALL.into_iter().zip(brands).zip(&ports[3..]) {
            fleet.servers.push(Server::find(stock, *brand, dir, *port, bookings)?);
        }
        for (kind, run) in fleet.servers.iter().map(|server| (server.stock.kind(), server.run())).collect::<Vec<_>>() {
            fleet.add(dir, Who::Server(kind), kind.name().to_owned(), run);
        }

        let mut common = "\n[nodes]\n".to_owned();
        for (number, address) in (1..).zip(&fleet.nodes) {
            // Writing to a string does not fail.
            let _ = writeln!(common, "{number} = \"{address}\"");
        }
        common.push_str("\n[resources]\n");
        let mut tables = String::new();
        for (kind, address) in &services {
            let name = kind.name();
            let Some(server) = fleet.server(*kind) else {
                let _ = writeln!(common, "{name} = \"http://{address}\"");
                continue;
            };
            let _ = writeln!(common, "{name} = \"{}\"", server.brand.word());
            let _ = write!(tables, "\n[databases.{name}]\ndsn_file = \"{name}.dsn\"\n");
            write_secret(&dir.join(format!("{name}.dsn")), &server.dsn())?;
        }
        common.push_str(&tables);
        for number in 1..=3 {
            let name = format!("node-{number}");
            let config = dir.join(format!("{name}.toml"));
            let text = format!("cluster = \"demo\"\nnode = {number}\ndata = \"{name}\"\n{common}");
            std::fs::write(&config, text).map_err(|source| FleetError::Write { path: config.clone(), source })?;
            let arguments = ["serve", "--config", &config.display().to_string(), "--exit-with-parent"];
            fleet.add(dir, Who::Node(number), name, own(&program, &arguments));
        }
        for (kind, address) in services.into_iter().skip(fleet.servers.len()) {
            let name = kind.name().to_owned();
            let database = dir.join(format!("{name}.sqlite"));
            let arguments = [
                "participant",
                "--kind",
                &name,
                "--database",
                &database.display().to_string(),
                "--listen",
                &address,
                "--node",
                &fleet.nodes.join(","),
                "--exit-with-parent",
            ];
            let run = own(&program, &arguments);
            fleet.add(dir, Who::Participant(kind), name, run);
            fleet.databases.push((kind, database));
        }
        Ok(fleet)
    }

    fn add(&mut self, dir: &Path, who: Who, name: String, run: Run) {
        let log = dir.join(format!("{name}.log"));
        self.members.push(Member { who, name, run, log, child: None, lifeline: None });
    }

    /// The nodes' addresses, node 1 first.
    pub(super) fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Who keeps a kind of parts, and where it listens.
    pub(super) fn keeper(&self, kind: Kind) -> (Who, &str) {
        let who = if self.server(kind).is_some() { Who::Server(kind) } else { Who::Participant(kind) };
        (who, self.services.iter().find(|(service, _)| *service == kind).map_or("", |(_, address)| address))
    }

    /// The participants' files.
    pub(super) fn databases(&self) -> &[(Kind, PathBuf)] {
        &self.databases
    }

    pub(super) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(super) fn server(&self, kind: Kind) -> Option<&Server> {
        self.servers.iter().find(|server| server.stock.kind() == kind)
    }

    /// Makes the servers' files, all at once.
    pub(super) async fn make_servers(&self) -> Result<(), FleetError> {
        try_join_all(self.servers.iter().map(Server::make)).await?;
        Ok(())
    }

    pub(super) fn start_all(&mut self) -> Result<(), FleetError> {
        let all: Vec<Who> = self.members.iter().map(|member| member.who).collect();
        all.into_iter().try_for_each(|who| self.start(who))
    }

    /// Starts a process that may be running, or have failed to start: what a killed server leaves behind may hold its files
    /// for a moment.
    pub(super) fn start_unless_running(&mut self, who: Who) -> Result<(), FleetError> {
        let runs = self.member(who).child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if runs { Ok(()) } else { self.start(who) }
    }

    /// Starts a process that is not running.
    pub(super) fn start(&mut self, who: Who) -> Result<(), FleetError> {
        let member = self.member(who);
        let open = || File::options().create(true).append(true).open(&member.log);
        let log = open().map_err(|source| FleetError::Write { path: member.log.clone(), source })?;
        let mut command = Command::new(&member.run.program);
        command
            .args(&member.run.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // Ctrl-C in a terminal goes to the demo alone, which ends the others.
            .process_group(0)
            .kill_on_drop(true);
        // What is set for the demo's own sake must not configure its nodes.
        for (name, _) in std::env::vars_os() {
            let keep = ["VERDICT_LOG", "VERDICT_LOG_FORMAT"];
            if name.to_str().is_some_and(|name| name.starts_with("VERDICT_") && !keep.contains(&name)) {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().map_err(|source| FleetError::Spawn { name: member.name.clone(), source })?;
        member.lifeline = child.stdin.take();
        member.child = Some(child);
        Ok(())
    }

    /// kill -9, and waits until the process is gone.
    pub(super) async fn kill(&mut self, who: Who) -> Result<(), FleetError> {
        let member = self.member(who);
        let Some(mut child) = member.child.take() else { return Ok(()) };
        child.kill().await.map_err(|source| FleetError::Signal { name: member.name.clone(), signal: "SIGKILL", source })
    }

    /// Stops a process in its tracks: it keeps its connections and answers nothing.
    pub(super) fn pause(&mut self, who: Who) -> Result<(), FleetError> {
        self.member(who).signal(Signal::STOP, "SIGSTOP")
    }

    pub(super) fn resume(&mut self, who: Who) -> Result<(), FleetError> {
        self.member(who).signal(Signal::CONT, "SIGCONT")
    }

    /// Fails if a process has ended that nobody ended.
    pub(super) fn check(&mut self) -> Result<(), FleetError> {
        for member in &mut self.members {
            let Some(child) = &mut member.child else { continue };
            if let Ok(Some(status)) = child.try_wait() {
                let log = member.log.clone();
                return Err(FleetError::Ended { name: member.name.clone(), status, tail: tail(&log), log });
            }
        }
        Ok(())
    }

    /// Asks all but the servers to stop, and waits until they have.
    pub(super) async fn stop_all(&mut self) -> Result<(), FleetError> {
        self.stop(|who| !matches!(who, Who::Server(_))).await
    }

    pub(super) async fn stop_servers(&mut self) -> Result<(), FleetError> {
        self.stop(|who| matches!(who, Who::Server(_))).await
    }

    async fn stop(&mut self, which: impl Fn(Who) -> bool) -> Result<(), FleetError> {
        self.check()?;
        // The participants first: a node that stops has told them all it had to.
        for member in self.members.iter().rev().filter(|member| which(member.who)) {
            let stop = member.run.stop;
            member.signal(stop, if stop == Signal::INT { "SIGINT" } else { "SIGTERM" })?;
        }
        for member in self.members.iter_mut().filter(|member| which(member.who)) {
            let Some(child) = &mut member.child else { continue };
            let name = member.name.clone();
            let status = timeout(STOP_WITHIN, child.wait()).await;
            let status = status.map_err(|_| FleetError::Stuck { name: name.clone() })?;
            let status =
                status.map_err(|source| FleetError::Signal { name: name.clone(), signal: "SIGTERM", source })?;
            if !status.success() {
                let log = member.log.clone();
                return Err(FleetError::Ended { name, status, tail: tail(&log), log });
            }
            member.child = None;
        }
        Ok(())
    }

    /// Ends all that run at once, whatever happened. Returns when they are gone.
    pub(super) async fn kill_all(&mut self) {
        for member in &self.members {
            // One that has ended can't be killed, and need not be.
            let _ = member.signal(member.run.end, "its end");
        }
        for member in &mut self.members {
            let Some(mut child) = member.child.take() else { continue };
            if timeout(STOP_WITHIN, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }

    fn member(&mut self, who: Who) -> &mut Member {
        self.members.iter_mut().find(|member| member.who == who).expect("all were laid out")
    }
}

/// This program, as a part of the demo.
fn own(program: &Path, arguments: &[&str]) -> Run {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Run { program: program.to_owned(), arguments, stop: Signal::TERM, end: Signal::KILL }
}

/// A file that nobody else may read.
fn write_secret(path: &Path, text: &str) -> Result<(), FleetError> {
    let mut options = File::options();
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| FleetError::Write { path: path.to_owned(), source })
}

impl Member {
    fn signal(&self, signal: Signal, name: &'static str) -> Result<(), FleetError> {
        let id = self.child.as_ref().and_then(Child::id).and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let Some(id) = id else { return Ok(()) };
        kill_process(id, signal).map_err(|source| FleetError::Signal {
            name: self.name.clone(),
            signal: name,
            source: source.into(),
        })
    }
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_else(|error| format!("(cannot be read: {error})"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}

/// Ports on which nobody listens, held together until all are found.
fn free_ports(wanted: usize, seed: u64) -> Result<Vec<u16>, FleetError> {
    let mut held = Vec::new();
    let mut tried = BTreeSet::new();
    let width = PORTS.end - PORTS.start;
    for step in 0..width {
        // An odd stride that is no divisor of the width goes through all of them.
        let port = PORTS.start + (seed.wrapping_add(step.wrapping_mul(7_919))) % width;
        let Ok(port) = u16::try_from(port) else { continue };
        if tried.insert(port)
            && let Ok(listener) = TcpListener::bind(("127.0.0.1", port))
        {
            held.push((port, listener));
        }
        if held.len() == wanted {
            return Ok(held.into_iter().map(|(port, _)| port).collect());
        }
    }
    Err(FleetError::Ports)
}
