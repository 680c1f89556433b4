//! What a replica does when its disk fails it: it says so, acknowledges nothing more, and lets itself be repaired.
#![cfg(not(madsim))]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use support::cluster::{Cluster, NODES, Stored};
use support::{leader, status_where};
use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::{MessageKind, NodeId, Options, ProposeError, Role, StartError};

fn disk(cluster: &Cluster, node: NodeId) -> SimDisk {
    match &cluster.stores[cluster.at(node)] {
        Stored::Simulated(disk) => disk.clone(),
        Stored::Really(_) => unreachable!("it runs on simulated disks"),
    }
}

/// The leader's disk fails in some way; it stops and says why, and the others go on.
async fn stops_and_says_why(fail: fn(&SimDisk), heal: fn(&SimDisk), why: &str) {
    let mut cluster = Cluster::on_simulated_disks(|_| {}).await;
    cluster.write(&cluster.replicas, "before").await;
    let leads = leader(&cluster.replicas).await;
    let node = leads.status().node;
    fail(&disk(&cluster, node));
    // Entries until one needs a file: each is acknowledged by a majority, or answered with the failure.
    let failed = async {
        loop {
            match leads.propose(Bytes::from(vec![7; 20_000])).await {
                Ok(_) => {}
                Err(ProposeError::Stopped { reason }) => return reason,
                Err(other) => panic!("{other}"),
            }
        }
    };
    let reason = tokio::time::timeout(Duration::from_secs(20), failed).await.unwrap();
    assert!(reason.contains(why), "{reason:?} does not tell of {why:?}");
    let status = status_where(&leads, "stopped", |s| s.stopped.is_some()).await;
    assert_eq!(status.role, Role::Stopped);
    assert!(status.stopped.unwrap().contains(why));

    cluster.write(&cluster.others(node), "without it").await;
    cluster.stop(node).await;
    heal(&disk(&cluster, node));
    cluster.restart(node).await;
    cluster.settle().await;
    assert!(cluster.entries(node).contains(&Bytes::from_static(b"without it")));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_stops_the_replica() {
    stops_and_says_why(|disk| disk.fail_syncs(0, 1), |_| {}, "syncing log-").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_the_replica() {
    stops_and_says_why(|disk| disk.set_room(Some(0)), |disk| disk.set_room(None), "no room left").await;
}

/// Flips a bit in the body of an entry.
fn damage(disk: &SimDisk) {
    let body = format!("{:0>100}", 20);
    let files = disk.sizes().into_iter().filter(|(name, _)| name.ends_with(".seg"));
    let mut found = files.filter_map(|(name, _)| {
        let content = disk.file(&name).unwrap();
        let at = content.windows(body.len()).position(|bytes| bytes == body.as_bytes())?;
        Some((name, at as u64))
    });
    let (name, at) = found.next_back().unwrap();
    disk.flip_bit(&name, at * 8).unwrap();
}

async fn filled(change: fn(&mut Options), entries: u32) -> (Cluster, NodeId) {
    let cluster = Cluster::on_simulated_disks(change).await;
    let leads = leader(&cluster.replicas).await;
    for i in 0..entries {
        leads.propose(Bytes::from(format!("{i:0>100}"))).await.unwrap();
    }
    cluster.settle().await;
    let node = cluster.others(leads.status().node)[0].status().node;
    (cluster, node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_fetched_from_the_leader_before_raft_starts() {
    let (mut cluster, node) = filled(|_| {}, 100).await;
    cluster.stop(node).await;
    damage(&disk(&cluster, node));
    cluster.restart(node).await;
    assert!(cluster.net.sent_by(node, MessageKind::Fetch) > 0);
    cluster.write(&cluster.replicas, "after").await;
    cluster.settle().await;
    assert_eq!(cluster.entries(node).len(), 101);
    // And it stays repaired.
    cluster.stop(node).await;
    let asked = cluster.net.sent_by(node, MessageKind::Fetch);
    cluster.restart(node).await;
    cluster.settle().await;
    assert_eq!(cluster.net.sent_by(node, MessageKind::Fetch), asked);
    cluster.end().await;
}

/// A section of a node's snapshot is harmed while the node is down; it gets a whole snapshot from the leader.
async fn gets_the_leaders_snapshot(harm: fn(&SimDisk, &str)) {
    let small = |options: &mut Options| (options.snapshot_every, options.keep_entries) = (60, 5);
    let (mut cluster, node) = filled(small, 200).await;
    status_where(&cluster.replicas[cluster.at(node)], "a snapshot", |s| s.snapshot.is_some()).await;
    cluster.stop(node).await;
    let disk = disk(&cluster, node);
    let (section, _) = disk.sizes().into_iter().find(|(name, _)| name.starts_with("section-sealed")).unwrap();
    harm(&disk, &section);
    cluster.restart(node).await;
    assert!(cluster.net.sent_by(node, MessageKind::Fetch) > 0);
    cluster.settle().await;
    assert_eq!(cluster.entries(node).len(), 200);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_section_is_fetched_with_the_leaders_snapshot() {
    gets_the_leaders_snapshot(|disk, section| assert!(disk.lose_file(section))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_section_is_fetched_with_the_leaders_snapshot() {
    gets_the_leaders_snapshot(|disk, section| disk.flip_bit(section, 1000).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaders_snapshot_that_ends_before_the_log_begins_is_taken_with_the_entries_behind_it() {
    let when_told = |options: &mut Options| {
        (options.snapshot_every, options.keep_entries) = (1_000_000, 5);
        options.repair_within = Duration::from_secs(5);
    };
    let (mut cluster, node) = filled(when_told, 100).await;
    let leads = leader(&cluster.replicas).await;
    leads.take_snapshot().await;
    let old = status_where(&leads, "a snapshot", |s| s.snapshot.is_some()).await.snapshot;
    for i in 0..50 {
        cluster.write(&cluster.replicas, &format!("later {i}")).await;
    }
    cluster.settle().await;
    let replica = cluster.replicas[cluster.at(node)].clone();
    replica.take_snapshot().await;
    status_where(&replica, "a newer snapshot", |s| s.snapshot > old).await;
    cluster.stop(node).await;
    let disk = disk(&cluster, node);
    let (section, _) = disk.sizes().into_iter().rfind(|(name, _)| name.starts_with("section-")).unwrap();
    disk.flip_bit(&section, 1000).unwrap();
    cluster.restart(node).await;
    cluster.settle().await;
    assert_eq!(cluster.entries(node).len(), 150);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_of_the_others_a_damaged_node_says_so_and_does_not_start() {
    let hasty = |options: &mut Options| options.repair_within = Duration::from_millis(1500);
    let (mut cluster, node) = filled(hasty, 50).await;
    for node in NODES {
        cluster.stop(node).await;
    }
    damage(&disk(&cluster, node));
    let other = cluster.others(node)[0].status().node;
    cluster.restart(other).await;
    let error = cluster.try_restart(node).await.unwrap_err();
    assert!(matches!(error, StartError::Damaged(_)), "{error}");
    assert!(error.to_string().contains("majority"), "{error}");
    cluster.end().await;
}

/// Removes all files of a node that has stopped.
fn wipe(cluster: &mut Cluster, node: NodeId) {
    let at = cluster.at(node);
    cluster.stores[at] = Stored::Simulated(SimDisk::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_files_were_removed_catches_up_before_it_takes_part() {
    let small = |options: &mut Options| (options.snapshot_every, options.keep_entries) = (60, 5);
    let (mut cluster, node) = filled(small, 200).await;
    cluster.stop(node).await;
    wipe(&mut cluster, node);
    cluster.restart(node).await;
    assert!(cluster.net.sent_by(node, MessageKind::Fetch) > 2, "it asked for more than whether there is a cluster");
    let replica = &cluster.replicas[cluster.at(node)];
    status_where(replica, "the whole log", |s| s.last_index.is_some_and(|last| last >= 200)).await;
    cluster.write(&cluster.replicas, "after").await;
    cluster.settle().await;
    assert_eq!(cluster.entries(node).len(), 201);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_files_were_removed_gives_no_ballot_while_another_is_down() {
    let hasty = |options: &mut Options| options.repair_within = Duration::from_millis(1500);
    let (mut cluster, node) = filled(hasty, 50).await;
    for node in NODES {
        cluster.stop(node).await;
    }
    wipe(&mut cluster, node);
    let other = cluster.others(node)[0].status().node;
    cluster.restart(other).await;
    let error = cluster.try_restart(node).await.unwrap_err();
    assert!(matches!(error, StartError::Damaged(_)), "{error}");
    assert!(error.to_string().contains("has no data"), "{error}");
    cluster.end().await;
}
