//! Three replicas on real disks, with links in memory.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use support::cluster::{Cluster, NODES, Stored};
use support::{Book, disconnect, join, leader, options, status_where};
use verdict_raft_log::files::{RealDisk, Spawn};
use verdict_raft_log::{
    MembersError, MessageKind, NodeId, Options, ProposeError, ReadError, Replica, Role, TransferError,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_proposals_in_flight_are_each_applied_once_in_one_order() {
    let cluster = Cluster::on_real_disks(|_| {}).await;
    let leads = leader(&cluster.replicas).await;
    let proposals = (0..300).map(|i| leads.propose(Bytes::from(format!("{i}"))));
    let answers = join_all(proposals).await;
    cluster.settle().await;
    let applied = cluster.entries(NODES[1]);
    assert_eq!(applied.len(), 300);
    for (i, answer) in answers.into_iter().enumerate() {
        // The machine answers with the number of the entry, counted from 1.
        let number: usize = String::from_utf8(answer.unwrap().answer.to_vec()).unwrap().parse().unwrap();
        assert_eq!(applied[number - 1], i.to_string());
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_followed_by_another_and_comes_back_from_its_disk() {
    let mut cluster = Cluster::on_real_disks(|_| {}).await;
    cluster.write(&cluster.replicas, "before").await;
    let old = leader(&cluster.replicas).await.status().node;
    cluster.stop(old).await;
    let killed = Instant::now();
    cluster.write(&cluster.others(old), "between").await;
    assert!(killed.elapsed() < Duration::from_secs(2), "it took {:?} without a leader", killed.elapsed());
    cluster.restart(old).await;
    cluster.write(&cluster.replicas, "after").await;
    cluster.settle().await;
    assert_eq!(cluster.entries(old), ["before", "between", "after"]);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lags_gets_only_the_sections_it_lacks() {
    let small = |options: &mut Options| {
        (options.snapshot_every, options.keep_entries, options.chunk_bytes) = (100, 10, 1000);
    };
    let mut cluster = Cluster::on_real_disks(small).await;
    let leads = leader(&cluster.replicas).await;
    let behind = cluster.others(leads.status().node)[0].status().node;
    let body = |i: u32| Bytes::from(format!("{i:0>60}"));
    for i in 0..150 {
        leads.propose(body(i)).await.unwrap();
    }
    let at = cluster.at(behind);
    status_where(&cluster.replicas[at], "a first snapshot", |s| s.snapshot.is_some()).await;
    cluster.stop(behind).await;
    let rest = cluster.others(behind);
    for i in 150..600 {
        leads.propose(body(i)).await.unwrap();
    }
    status_where(&leads, "only the end of the log", |s| s.purged.is_some_and(|at| at.index > 500)).await;
    assert_eq!(rest.len(), 2);

    let Stored::Really(dir) = &cluster.stores[at] else { unreachable!("it runs on real disks") };
    let stored: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .filter_map(|file| {
            Some(file.unwrap().file_name().to_str()?.strip_prefix("section-")?.rsplitn(3, '-').nth(2)?.to_owned())
        })
        .collect();
    assert!(!stored.is_empty());
    cluster.net.pieces.lock().unwrap().clear();
    cluster.restart(behind).await;
    cluster.settle().await;
    let pieces = cluster.net.pieces.lock().unwrap().clone();
    assert!(!pieces.is_empty(), "it caught up by a snapshot");
    let bears = |piece: &Bytes, id: &str| piece.windows(id.len()).any(|bytes| bytes == id.as_bytes());
    for id in stored.iter().filter(|id| id.starts_with("sealed-")) {
        assert!(!pieces.iter().any(|piece| bears(piece, id)), "section {id} was sent, and was there");
    }
    assert!(*cluster.books[at].thaws.lock().unwrap() >= 2, "at the restart and by the transfer");
    cluster.end().await;
}

/// A piece and two offers in a row are lost: that costs the time of three messages, not of three installations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_messages_of_a_snapshot_cost_little() {
    let small = |options: &mut Options| (options.snapshot_every, options.keep_entries) = (20, 5);
    let mut cluster = Cluster::on_real_disks(small).await;
    let leads = leader(&cluster.replicas).await;
    let behind = cluster.others(leads.status().node)[0].status().node;
    cluster.stop(behind).await;
    for i in 0..100 {
        leads.propose(Bytes::from(i.to_string())).await.unwrap();
    }
    status_where(&leads, "only the end of the log", |s| s.purged.is_some_and(|at| at.index > 50)).await;
    let lost = [(MessageKind::PutSections, 1), (MessageKind::OfferSnapshot, 2)];
    *cluster.net.lose.lock().unwrap() = lost.into_iter().map(|(kind, count)| (kind.into(), count)).collect();
    cluster.restart(behind).await;
    let begun = std::time::Instant::now();
    cluster.settle().await;
    let took = begun.elapsed();
    assert!(cluster.net.lose.lock().unwrap().values().all(|left| *left == 0), "all of them were lost");
    // 0.5 s and 1 s for the offers, 2 s for the piece; with four seconds for the first it would be 20.
    assert!(took < Duration::from_secs(8), "it took {took:?}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_cluster_comes_back_with_its_snapshots() {
    let small = |options: &mut Options| (options.snapshot_every, options.keep_entries) = (50, 5);
    let mut cluster = Cluster::on_real_disks(small).await;
    for i in 0..130 {
        cluster.write(&cluster.replicas, &i.to_string()).await;
    }
    cluster.settle().await;
    for node in NODES {
        cluster.stop(node).await;
    }
    for node in NODES {
        cluster.restart(node).await;
    }
    cluster.write(&cluster.replicas, "after").await;
    cluster.settle().await;
    let expected: Vec<_> = (0..130).map(|i| i.to_string()).chain(["after".to_owned()]).collect();
    assert_eq!(cluster.entries(NODES[0]), expected);
    cluster.end().await;
}

/// A leader hands over only to who was heard of lately. One that has only just been elected, or on a machine that is busy
/// with other things, may have to hear of him first.
async fn hand_over(from: &Replica, to: Option<NodeId>) {
    let by = Instant::now() + Duration::from_secs(20);
    loop {
        match from.transfer_leadership(to).await {
            Ok(()) => return,
            Err(TransferError::NoSuchNode(_)) if Instant::now() < by => {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_without_losing_a_proposal() {
    let cluster = Cluster::on_real_disks(|_| {}).await;
    let old = leader(&cluster.replicas).await;
    let to = cluster.others(old.status().node)[0].status().node;
    cluster.write(&cluster.replicas, "before").await;
    hand_over(&old, Some(to)).await;
    let new = leader(&cluster.replicas).await;
    assert_eq!(new.status().node, to);
    assert!(matches!(old.propose(Bytes::from_static(b"late")).await, Err(ProposeError::NotLeader { .. })));
    hand_over(&new, None).await;
    assert_ne!(leader(&cluster.replicas).await.status().node, to);
    cluster.write(&cluster.replicas, "after").await;
    cluster.settle().await;
    assert_eq!(cluster.entries(to), ["before", "after"]);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_barrier_sees_what_was_acknowledged_and_fails_on_a_deposed_leader() {
    let cluster = Cluster::on_real_disks(|_| {}).await;
    let old = leader(&cluster.replicas).await;
    let node = old.status().node;
    let follower = cluster.others(node)[0].clone();
    for i in 0..20 {
        let written = old.propose(Bytes::from(i.to_string())).await.unwrap();
        let read = cluster.read(&follower).await;
        assert!(read.index >= written.position.index);
        assert_eq!(cluster.entries(follower.status().node).len(), i + 1);
    }
    cluster.net.isolate(node, &NODES);
    assert_eq!(old.status().role, Role::Leader);
    assert!(matches!(old.read_barrier().await, Err(ReadError::NotLeader { .. })));
    let rest = cluster.others(node);
    cluster.write(&rest, "behind its back").await;
    assert!(matches!(old.read_barrier().await, Err(ReadError::NotLeader { .. })));

    let unheard = old.propose(Bytes::from_static(b"never acknowledged"));
    let unheard = async { tokio::time::timeout(Duration::from_secs(10), unheard).await.unwrap() };
    let healed = async {
        status_where(&leader(&rest).await, "it leads", |s| s.leads()).await;
        cluster.net.heal();
    };
    let (unheard, ()) = tokio::join!(unheard, healed);
    assert!(matches!(unheard, Err(ProposeError::Interrupted | ProposeError::NotLeader { .. })), "{unheard:?}");
    cluster.settle().await;
    assert!(!cluster.entries(node).iter().any(|entry| entry == "never acknowledged"));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_replica_says_so() {
    let cluster = Cluster::on_real_disks(|_| {}).await;
    let leads = leader(&cluster.replicas).await;
    leads.clone().stop().await;
    let status = status_where(&leads, "stopped", |s| s.stopped.is_some()).await;
    assert_eq!(status.role, Role::Stopped);
    assert!(matches!(leads.propose(Bytes::new()).await, Err(ProposeError::Stopped { .. })));
    assert!(matches!(leads.read_barrier().await, Err(ReadError::Stopped { .. })));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_replaced_by_another() {
    let small = |options: &mut Options| (options.snapshot_every, options.keep_entries) = (60, 5);
    let cluster = Cluster::on_real_disks(small).await;
    for i in 0..100 {
        cluster.write(&cluster.replicas, &i.to_string()).await;
    }
    let leads = leader(&cluster.replicas).await;
    let goes = cluster.others(leads.status().node)[0].status().node;
    let new = NodeId(4);
    let dir = tempfile::tempdir().unwrap();
    let book = Book::default();
    let joining = Options { joins: true, ..options(new, &NODES) };
    let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
    let fourth = join(&cluster.net, joining, disk, Spawn::Thread, book.clone()).await;

    let follower = cluster.others(leads.status().node)[1].clone();
    let members: BTreeMap<_, _> =
        NODES.iter().chain([&new]).filter(|id| **id != goes).map(|id| (*id, format!("node-{id}"))).collect();
    assert!(matches!(follower.change_members(members.clone()).await, Err(MembersError::NotLeader { .. })));
    loop {
        match leader(&cluster.replicas).await.change_members(members.clone()).await {
            Ok(()) => break,
            Err(MembersError::NotLeader { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // It has a ballot before it hears that the one that goes has none any more.
    status_where(&fourth, "the new members", |status| {
        status.members.iter().all(|m| m.voter) && status.members.iter().map(|m| &m.node).eq(members.keys())
    })
    .await;

    // The new one counts: with it, and without the one that went and one that stayed, there is a majority.
    cluster.net.isolate(goes, &NODES);
    let rest: Vec<_> = cluster.others(goes).into_iter().chain([fourth.clone()]).collect();
    let down = rest[0].status().node;
    disconnect(&cluster.net, down);
    cluster.net.isolate(down, &[new, NODES[0], NODES[1], NODES[2]]);
    cluster.write(&rest[1..], "without two of the first three").await;
    cluster.read(&fourth).await;
    assert_eq!(book.applied.lock().unwrap().len(), 101);
    fourth.stop().await;
    cluster.end().await;
}
