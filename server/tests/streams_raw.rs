//! A participant's stream, frame by frame: hellos, credit, batches, late replies, silence.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use support::{Cluster, name};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Endpoint};
use verdict_client::{
    BranchId, CallError, Decision, Outcome, State, Xid,
    participant::ResourceManager,
    wire::{self, FromWire as _},
};
use verdict_proto::v1::{
    self, Ask, Down, Hello, Reply, Up, ask, branches_client::BranchesClient, error_detail::Code as Detail, reply,
};

fn plain(_: &str, manager: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> {
    manager
}

/// Seats and the wallet are reached by streams, and nobody is there; tickets have an endpoint.
async fn cluster() -> Cluster {
    Cluster::start_by_stream(&plain, &[], &["seats", "wallet"]).await
}

/// A stream that does what a test says.
struct Raw {
    up: mpsc::Sender<Up>,
    down: Streaming<Down>,
}

fn hello(resources: &[&str], credit: u32) -> Up {
    let resources = resources.iter().map(|name| (*name).to_owned()).collect();
    Up { hello: Some(Hello { resources }), credit, ..Up::default() }
}

impl Raw {
    async fn open(address: &str, first: Up) -> Result<Self, Status> {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let (up, frames) = mpsc::channel(16);
        up.send(first).await.unwrap();
        let down = BranchesClient::new(channel).attach(ReceiverStream::new(frames)).await?.into_inner();
        Ok(Self { up, down })
    }

    /// One that the leader has welcomed.
    async fn attached(cluster: &Cluster, resources: &[&str], credit: u32) -> Self {
        let leader = cluster.leader().await;
        let mut raw = Self::open(&cluster.nodes[&leader], hello(resources, credit)).await.unwrap();
        let first = raw.down.message().await.unwrap().unwrap();
        assert_eq!(first.welcome.unwrap().node, leader);
        assert!(first.credit > 0 && first.asks.is_empty());
        raw
    }

    async fn send(&self, frame: Up) {
        self.up.send(frame).await.unwrap();
    }

    async fn answer(&self, replies: Vec<(u64, reply::Body)>, credit: u32) {
        let replies = replies.into_iter().map(|(id, body)| Reply { id, body: Some(body) }).collect();
        self.send(Up { replies, credit, ..Up::default() }).await;
    }

    /// The asks of the next frame that has some.
    async fn asks(&mut self) -> Vec<Ask> {
        let next = async {
            loop {
                let frame = self.down.message().await.unwrap().expect("the stream goes on");
                if !frame.asks.is_empty() {
                    return frame.asks;
                }
            }
        };
        timeout(Duration::from_secs(20), next).await.expect("an ask within 20 s")
    }

    /// How the stream ends.
    async fn end(&mut self) -> Status {
        let end = async {
            loop {
                match self.down.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it ended without a word"),
                    Err(status) => return status,
                }
            }
        };
        timeout(Duration::from_secs(20), end).await.expect("an end within 20 s")
    }
}

fn voted(vote: v1::Vote) -> reply::Body {
    let reason = (vote == v1::Vote::Refused).then(|| v1::Reason { text: "late".to_owned(), ..v1::Reason::default() });
    reply::Body::Prepare(v1::PrepareResponse { vote: vote.into(), reason })
}

fn done() -> reply::Body {
    reply::Body::Settle(v1::SettleResponse { settlement: v1::Settlement::Done.into(), reason: None })
}

/// What it is asked for, and of which branch.
fn prepares(ask: &Ask) -> Option<BranchId> {
    match ask.body.clone() {
        Some(ask::Body::Prepare(request)) => Some(BranchId::from_wire(request.branch).unwrap()),
        _ => None,
    }
}

fn commit(cluster: &Cluster, resource: &str, vote_timeout: Duration) -> (Xid, JoinHandle<Result<Decision, CallError>>) {
    let mut transaction = cluster.client().with_deadline(Duration::from_secs(30)).transaction();
    transaction.set_vote_timeout(vote_timeout);
    transaction.add(name(resource), "work".into()).unwrap();
    (transaction.xid(), tokio::spawn(async move { transaction.commit().await }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_hellos_are_told_what_is_wrong() {
    let cluster = cluster().await;
    let leader = cluster.leader().await;
    let seventy: Vec<String> = (0..70).map(|n| format!("seats-{n}")).collect();
    let seventy: Vec<&str> = seventy.iter().map(String::as_str).collect();
    for (first, code, detail, says) in [
        (hello(&["hotel"], 1), Code::NotFound, Detail::UnknownResource, "no resource hotel is configured"),
        (hello(&["seats", "tickets"], 1), Code::NotFound, Detail::UnknownResource, "write tickets = \"stream\" in"),
        (hello(&["Seats!"], 1), Code::InvalidArgument, Detail::Invalid, "hello.resources: a resource name is"),
        (hello(&[], 1), Code::InvalidArgument, Detail::Invalid, "name 1 to 64, not 0"),
        (hello(&seventy, 1), Code::InvalidArgument, Detail::Invalid, "name 1 to 64, not 70"),
        (hello(&["seats"], 0), Code::InvalidArgument, Detail::Invalid, "at least one request at a time"),
        (Up { credit: 1, ..Up::default() }, Code::InvalidArgument, Detail::Invalid, "the first frame must be a hello"),
    ] {
        let refused = Raw::open(&cluster.nodes[&leader], first).await.err().expect("it is refused");
        assert_eq!((refused.code(), wire::detail(&refused).unwrap().code()), (code, detail), "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    for (node, address) in cluster.nodes.iter().filter(|(node, _)| **node != leader) {
        let refused = Raw::open(address, hello(&["seats"], 1)).await.err().expect("only the leader has streams");
        let detail = wire::detail(&refused).unwrap();
        assert_eq!((refused.code(), detail.code()), (Code::Unavailable, Detail::NotLeader), "node {node}");
        assert_eq!((detail.leader, detail.leader_address), (leader, cluster.nodes[&leader].clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_is_sent_than_there_is_credit_for_and_what_waits_shares_a_frame() {
    const COMMITS: usize = 100;
    let cluster = cluster().await;
    let mut raw = Raw::attached(&cluster, &["seats"], 1).await;
    let commits: Vec<_> = (0..COMMITS).map(|_| commit(&cluster, "seats", Duration::from_secs(20))).collect();
    let first = raw.asks().await;
    assert_eq!(first.len(), 1);
    // All wait for credit by now, and none was sent.
    let verdict = cluster.client();
    for (xid, _) in &commits {
        while verdict.get(*xid).await.unwrap().state != State::Voting {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    raw.answer(vec![(first[0].id, voted(v1::Vote::ReadOnly))], 10).await;
    let ten = raw.asks().await;
    assert_eq!(ten.len(), 10);
    raw.send(Up { credit: 200, ..Up::default() }).await;
    let rest = raw.asks().await;
    // On a busy machine twins of those that have waited for half a second are among them.
    assert!(rest.len() >= COMMITS - 11, "in one frame: {}", rest.len());
    let branches: BTreeSet<_> = ten.iter().chain(&rest).map(|ask| prepares(ask).unwrap()).collect();
    assert_eq!(branches.len(), COMMITS - 1, "each once");
    raw.answer(ten.iter().chain(&rest).map(|ask| (ask.id, voted(v1::Vote::ReadOnly))).collect(), 0).await;
    for (_, answer) in commits {
        assert_eq!(answer.await.unwrap().unwrap().outcome, Outcome::Committed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_is_no_answer_to_another_question() {
    let cluster = cluster().await;
    let mut raw = Raw::attached(&cluster, &["seats"], 8).await;
    // Each question has two seconds of the four.
    let (_, answer) = commit(&cluster, "seats", Duration::from_secs(4));
    let first = raw.asks().await;
    raw.send(Up::default()).await;
    // Two twins follow, after half a second and one more; then the question is given up.
    for _ in 0..2 {
        assert_eq!(prepares(&raw.asks().await[0]), prepares(&first[0]), "a twin");
        raw.send(Up::default()).await;
    }
    let second = raw.asks().await;
    assert_eq!(prepares(&first[0]), prepares(&second[0]), "asked again");
    assert_ne!(first[0].id, second[0].id);
    // A refusal would abort if it were taken for the second's. Nor is one taken that nobody asked for.
    let late = vec![(first[0].id, voted(v1::Vote::Refused)), (u64::MAX, voted(v1::Vote::Refused))];
    raw.answer(late, 0).await;
    // Another stream of the same participant says so too.
    let mut other = Raw::attached(&cluster, &["seats"], 1).await;
    other.answer(vec![(second[0].id, voted(v1::Vote::Refused))], 0).await;
    // Its end says that all before was read.
    other.send(hello(&[], 0)).await;
    other.end().await;
    raw.answer(vec![(second[0].id, voted(v1::Vote::Prepared))], 0).await;
    let told = raw.asks().await;
    assert!(matches!(told[0].body, Some(ask::Body::Commit(_))), "{told:?}");
    raw.answer(vec![(told[0].id, done())], 0).await;
    assert_eq!(answer.await.unwrap().unwrap().outcome, Outcome::Committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_none_is_asked_for_again() {
    let cluster = cluster().await;
    let mut raw = Raw::attached(&cluster, &["seats"], 8).await;
    let (xid, answer) = commit(&cluster, "seats", Duration::from_secs(20));
    let busy = v1::NotAnswered { code: Code::ResourceExhausted as u32, text: "come again".to_owned() };
    for (body, says) in [
        (reply::Body::NotAnswered(busy), "come again"),
        (done(), "it answers a commit or a rollback"),
        (voted(v1::Vote::Unspecified), "vote is missing"),
    ] {
        let ask = raw.asks().await;
        raw.answer(vec![(ask[0].id, body)], 1).await;
        // It is asked at once, before the log knows its branches.
        let said = async || {
            let branches = cluster.client().get(xid).await.unwrap().branches;
            branches.first().is_some_and(|branch| branch.last_error.contains(says))
        };
        while !said().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let ask = raw.asks().await;
    raw.answer(vec![(ask[0].id, voted(v1::Vote::ReadOnly))], 1).await;
    assert_eq!(answer.await.unwrap().unwrap().outcome, Outcome::Committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_its_rules_ends_and_says_why() {
    let cluster = cluster().await;
    let mut raw = Raw::attached(&cluster, &["seats"], 1).await;
    raw.send(hello(&["seats"], 1)).await;
    let end = raw.end().await;
    assert!(end.code() == Code::InvalidArgument && end.message().contains("a second hello"), "{end}");

    let mut raw = Raw::attached(&cluster, &["seats"], 1).await;
    let replies = vec![Reply { id: 0, body: None }; 5_000];
    raw.send(Up { replies, ..Up::default() }).await;
    let end = raw.end().await;
    assert!(end.message().contains("more replies than there was credit for"), "{end}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_stream_ends_and_holds_up_nobody() {
    let cluster = cluster().await;
    let mut silent = Raw::attached(&cluster, &["seats"], 1_000).await;
    let swallowed: Vec<_> = (0..20).map(|_| commit(&cluster, "seats", Duration::from_secs(20))).collect();
    silent.asks().await;
    // Others are asked meanwhile, of other resources and of the same.
    let mut wallet = Raw::attached(&cluster, &["wallet"], 1).await;
    let (_, answer) = commit(&cluster, "wallet", Duration::from_secs(20));
    let ask = wallet.asks().await;
    wallet.answer(vec![(ask[0].id, voted(v1::Vote::ReadOnly))], 1).await;
    assert_eq!(answer.await.unwrap().unwrap().outcome, Outcome::Committed);
    let replica = cluster.replica("seats", &plain);
    for (_, answer) in swallowed {
        assert_eq!(answer.await.unwrap().unwrap().outcome, Outcome::Committed);
    }
    let end = silent.end().await;
    assert!(end.message().contains("silent"), "{end}");
    replica.stop().await;
}
