//! A watcher over nodes that break off, repeat themselves, lag behind and refuse.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::cluster::{Answer, Call, Node, dead, fails, options};
use futures_util::{StreamExt as _, pin_mut};
use tonic::Code;
use verdict_client::{CallError, LogTime, Options, RefusalCode, Step, Verdict, WatchQuery, Watched, Xid, wire::ToWire};
use verdict_proto::v1::{self, error_detail::Code as Detail, watch_event::Event};

fn step(index: u64, number: u32, more: bool) -> v1::WatchEvent {
    let transition = v1::Transition {
        step: v1::transition::Step::Begun.into(),
        xid: Xid::new(LogTime::from_millis(1), 0, index).to_wire(),
        ..v1::Transition::default()
    };
    v1::WatchEvent { index, number, more, event: Some(Event::Transition(transition)) }
}

fn mark(index: u64) -> v1::WatchEvent {
    v1::WatchEvent { index, event: Some(Event::Mark(v1::Mark {})), ..v1::WatchEvent::default() }
}

fn gap(first: u64, index: u64) -> v1::WatchEvent {
    v1::WatchEvent { index, event: Some(Event::Gap(v1::Gap { first })), ..v1::WatchEvent::default() }
}

/// What a watcher hears, in short, of nodes that each say this much, one after another, until he asks in vain; and
/// behind which index each was asked.
async fn hears(query: WatchQuery, said: Vec<Vec<v1::WatchEvent>>) -> (Vec<String>, Vec<u64>) {
    let asked_in_vain = said.len();
    // All at one address: the order is what counts.
    let node = Node::start(move |before| match said.get(before) {
        Some(events) => Answer::Events(events.clone()),
        None => fails(Code::Unavailable, Detail::NotLeader, None, 0),
    });
    let options = Options { deadline: Duration::from_millis(300), ..options(&[node.address]) };
    let mut watch = Verdict::new(options).unwrap().watch(query);
    let mut heard = Vec::new();
    loop {
        heard.push(match watch.next().await {
            Ok(Watched::Transition(one)) => {
                assert_eq!((one.step, one.xid), (Step::Begun, Xid::new(LogTime::from_millis(1), 0, one.index)));
                format!("{}/{}", one.index, one.number)
            }
            Ok(Watched::Gap { first, last }) => format!("gap {first}-{last}"),
            Ok(Watched::Mark { index }) => format!("mark {index}"),
            Err(CallError::Unknown { .. }) => break,
            Err(other) => panic!("{other}"),
        });
    }
    let asked = node.asked().into_iter().map(|call| match call {
        Call::Watch(after) => after,
        other => panic!("{other:?}"),
    });
    (heard, asked.take(asked_in_vain + 1).collect())
}

fn after(index: u64) -> WatchQuery {
    WatchQuery { after: Some(index), ..WatchQuery::default() }
}

#[tokio::test]
async fn an_entry_that_breaks_off_is_told_to_its_end_and_nothing_twice() {
    let said = vec![
        vec![mark(3), step(5, 1, true), step(5, 4, true)],
        vec![step(5, 1, true), step(5, 4, true), step(5, 6, false), step(9, 1, false), mark(11)],
        vec![mark(11), step(12, 2, false)],
    ];
    let (heard, asked) = hears(after(3), said).await;
    assert_eq!(heard, ["5/1", "5/4", "5/6", "9/1", "mark 11", "12/2"]);
    assert_eq!(asked, [3, 4, 11, 12]);
}

#[tokio::test]
async fn the_end_of_an_entry_that_was_told_already_counts() {
    let said = vec![vec![step(5, 1, true)], vec![step(5, 1, false)], vec![gap(6, 8), step(9, 1, false)]];
    let (heard, asked) = hears(after(0), said).await;
    assert_eq!(heard, ["5/1", "gap 6-8", "9/1"]);
    assert_eq!(asked, [0, 4, 5, 9]);
}

#[tokio::test]
async fn what_comes_from_before_is_dropped_and_a_gap_is_cut_to_what_was_not_seen() {
    let said = vec![
        vec![step(5, 1, false), step(7, 1, false)],
        vec![mark(2), step(5, 1, false), gap(1, 6), step(7, 1, false), step(7, 2, true), mark(6)],
        vec![gap(3, 9), mark(9), step(10, 1, false)],
    ];
    let (heard, asked) = hears(after(4), said).await;
    assert_eq!(heard, ["5/1", "7/1", "gap 8-9", "10/1"]);
    assert_eq!(asked, [4, 7, 7, 10]);
}

#[tokio::test]
async fn a_gap_in_the_middle_of_an_entry_says_so() {
    let said = vec![vec![step(5, 1, true), step(5, 2, true)], vec![gap(5, 8)]];
    let (heard, asked) = hears(after(1), said).await;
    assert_eq!(heard, ["5/1", "5/2", "gap 5-8"]);
    assert_eq!(asked, [1, 4, 8]);
}

#[tokio::test]
async fn from_now_on_begins_where_the_first_node_says() {
    let said = vec![vec![mark(40)], vec![mark(38), step(41, 1, false)]];
    let (heard, asked) = hears(WatchQuery::default(), said).await;
    assert_eq!(heard, ["mark 40", "41/1"]);
    assert_eq!(asked, [u64::MAX, 40, 41]);
}

#[tokio::test]
async fn refusals_end_it_and_dead_nodes_do_not() {
    let refusing = Node::start(|_| fails(Code::InvalidArgument, Detail::Invalid, None, 0));
    let stream = Verdict::new(options(&[dead(), refusing.address])).unwrap().watch(after(0)).into_stream();
    pin_mut!(stream);
    let refused = stream.next().await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Some(RefusalCode::Invalid), "{refused}");
    assert!(stream.next().await.is_none());
}
