//! `verdict cluster`.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use verdict_client::ClusterStatus;

use crate::client::{AskError, Target, grouped, table};

#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Who leads, how far the nodes are, how many transactions are open.
    Status {
        #[command(flatten)]
        target: Target,
    },
    /// Hand the leadership to another node.
    TransferLeader {
        /// The node's number. Without it the leader chooses.
        #[arg(long)]
        to: Option<u64>,
        #[command(flatten)]
        target: Target,
    },
}

#[derive(Debug, Serialize)]
struct StatusView {
    cluster: Option<String>,
    incarnation: u64,
    answered_by: u64,
    leader: Option<u64>,
    term: u64,
    last_index: u64,
    applied_index: u64,
    log_time_ms: u64,
    open_transactions: u64,
    in_doubt: u64,
    ended_transactions: u64,
    nodes: Vec<NodeView>,
}

#[derive(Debug, Serialize)]
struct NodeView {
    node: u64,
    address: String,
    role: &'static str,
    /// How far the leader knows this node's log to reach; only the leader tells.
    matched_index: Option<u64>,
}

#[derive(Debug, Serialize)]
struct TransferView {
    leader: u64,
}

impl Cluster {
    pub(crate) async fn run(self) -> Result<ExitCode, AskError> {
        match self {
            Self::Status { target } => {
                let status = target.connect()?.cluster_status().await?;
                target.print(&view(status), text)?;
            }
            Self::TransferLeader { to, target } => {
                let leader = target.connect()?.transfer_leader(to).await?;
                target.print(&TransferView { leader }, |view| format!("node {} leads", view.leader))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn view(status: ClusterStatus) -> StatusView {
    let leader = status.leader;
    let told_by_leader = leader == Some(status.node);
    StatusView {
        cluster: status.cluster.map(|id| id.0.iter().map(|byte| format!("{byte:02x}")).collect()),
        incarnation: status.incarnation,
        answered_by: status.node,
        leader,
        term: status.term,
        last_index: status.last_index,
        applied_index: status.applied_index,
        log_time_ms: status.log_time.as_millis(),
        open_transactions: status.open_transactions,
        in_doubt: status.in_doubt,
        ended_transactions: status.ended_transactions,
        nodes: status
            .nodes
            .into_iter()
            .map(|node| NodeView {
                node: node.node,
                address: node.address,
                role: match (node.voter, Some(node.node) == leader) {
                    (_, true) => "leader",
                    (true, false) => "voter",
                    (false, false) => "learner",
                },
                matched_index: told_by_leader.then_some(node.matched_index),
            })
            .collect(),
    }
}

fn text(view: &StatusView) -> String {
    let leader = view.leader.map_or("no leader known".to_owned(), |leader| format!("node {leader} leads"));
    let cluster = view.cluster.as_deref().unwrap_or("not founded yet");
    let mut nodes = table(&["NODE", "ADDRESS", "ROLE", "LOG UP TO"]);
    for node in &view.nodes {
        let matched = node.matched_index.map_or("?".to_owned(), grouped);
        nodes.add_row([node.node.to_string(), node.address.clone(), node.role.to_owned(), matched]);
    }
    format!(
        "{leader}, term {} (answered by node {})\n\n{nodes}\n\ntransactions  {} open, {} in doubt, {} ended\n\
         log           written up to {}, applied up to {}\ncluster       {cluster}, incarnation {}",
        view.term,
        view.answered_by,
        grouped(view.open_transactions),
        grouped(view.in_doubt),
        grouped(view.ended_transactions),
        grouped(view.last_index),
        grouped(view.applied_index),
        view.incarnation,
    )
}
