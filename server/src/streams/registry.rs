//! Who is attached, what waits for whom, and what was sent where.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use prost::Message as _;
use tokio::sync::{Notify, oneshot};
use verdict_client::participant::NotAnswered;
use verdict_proto::v1::{self, Down, Up, ask, reply};
use verdict_protocol::ResourceName;

use super::{FRAME_ASKS, FRAME_BYTES, MOST_CREDIT, MOST_WAITING, REPLIES, Turn, Violation};

pub(super) type Answer = Result<reply::Body, NotAnswered>;

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) leads: bool,
    /// By id, which is never used twice.
    calls: BTreeMap<u64, Call>,
    /// Of each declared resource the calls that no stream has taken yet.
    waiting: BTreeMap<ResourceName, BTreeSet<u64>>,
    streams: BTreeMap<u64, Stream>,
    last_call: u64,
    last_stream: u64,
}

/// A call that somebody waits for.
#[derive(Debug)]
struct Call {
    resource: ResourceName,
    at: At,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
enum At {
    Waiting(ask::Body),
    SentOn(u64),
}

#[derive(Debug)]
struct Stream {
    resources: BTreeSet<ResourceName>,
    /// Requests that may still be sent.
    credit: u32,
    /// What was sent and somebody still waits for.
    sent: BTreeSet<u64>,
    /// Replies that may still come, and those that were read and not given back yet.
    granted: u32,
    read: u32,
    leaving: bool,
    woken: Arc<Notify>,
}

impl Registry {
    pub(super) fn new(declared: impl IntoIterator<Item = ResourceName>) -> Self {
        Self {
            leads: false,
            calls: BTreeMap::new(),
            waiting: declared.into_iter().map(|resource| (resource, BTreeSet::new())).collect(),
            streams: BTreeMap::new(),
            last_call: 0,
            last_stream: 0,
        }
    }

    pub(super) fn declares(&self, resource: &ResourceName) -> bool {
        self.waiting.contains_key(resource)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(super) fn attach(&mut self, resources: BTreeSet<ResourceName>, credit: u32, woken: Arc<Notify>) -> u64 {
        self.last_stream += 1;
        let credit = credit.min(MOST_CREDIT);
        let (sent, granted) = (BTreeSet::new(), REPLIES);
        let stream = Stream { resources, credit, sent, granted, read: 0, leaving: false, woken };
        self.streams.insert(self.last_stream, stream);
        self.last_stream
    }

    /// What was sent on it and is not answered will not be.
    pub(super) fn detach(&mut self, id: u64) {
        let Some(stream) = self.streams.remove(&id) else { return };
        for call in stream.sent {
            self.answer(call, Err(NotAnswered::unavailable("the participant's stream ended before it answered")));
        }
        self.give_up_on(&stream.resources);
    }

    pub(super) fn end_all(&mut self) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        for id in ids {
            let woken = self.streams.get(&id).map(|stream| Arc::clone(&stream.woken));
            self.detach(id);
            woken.inspect(|woken| woken.notify_one());
        }
    }

    /// Answers what waits for resources that no stream serves any more.
    fn give_up_on(&mut self, resources: &BTreeSet<ResourceName>) {
        for resource in resources {
            if self.serving(resource).next().is_none() {
                let waiting = self.waiting.get_mut(resource).map(std::mem::take).unwrap_or_default();
                for call in waiting {
                    self.answer(call, Err(nobody(resource)));
                }
            }
        }
    }

    fn serving(&self, resource: &ResourceName) -> impl Iterator<Item = &Stream> {
        self.streams.values().filter(move |stream| !stream.leaving && stream.resources.contains(resource))
    }

    /// Takes a call; the answer comes through `answer`.
    pub(super) fn call(
        &mut self,
        resource: &ResourceName,
        body: ask::Body,
        answer: oneshot::Sender<Answer>,
    ) -> Result<u64, NotAnswered> {
        if self.serving(resource).next().is_none() {
            return Err(nobody(resource));
        }
        let Some(waiting) = self.waiting.get_mut(resource) else { return Err(nobody(resource)) };
        if waiting.len() >= MOST_WAITING {
            return Err(NotAnswered::unavailable(format!(
                "{MOST_WAITING} requests wait for {resource} already: its streams give too little credit"
            )));
        }
        self.last_call += 1;
        waiting.insert(self.last_call);
        let call = Call { resource: resource.clone(), at: At::Waiting(body), answer };
        self.calls.insert(self.last_call, call);
        for stream in self.serving(resource).filter(|stream| stream.credit > 0) {
            stream.woken.notify_one();
        }
        Ok(self.last_call)
    }

    /// Nobody waits for it any more. Its reply, if it comes, is dropped.
    pub(super) fn forget(&mut self, id: u64) {
        let Some(Call { resource, at, .. }) = self.calls.remove(&id) else { return };
        match at {
            At::Waiting(_) => drop(self.waiting.get_mut(&resource).map(|waiting| waiting.remove(&id))),
            At::SentOn(stream) => drop(self.streams.get_mut(&stream).map(|stream| stream.sent.remove(&id))),
        }
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        if let Some(call) = self.calls.remove(&id) {
            // Whoever asked may have gone away.
            drop(call.answer.send(answer));
        }
    }

    pub(super) fn turn(&self, id: u64) -> Turn {
        let Some(stream) = self.streams.get(&id) else { return Turn::End };
        let asks = stream.credit > 0 && stream.resources.iter().any(|resource| !self.waiting[resource].is_empty());
        if asks || stream.read >= REPLIES / 2 { Turn::Send } else { Turn::Wait }
    }

    pub(super) fn frame(&mut self, id: u64) -> Down {
        let mut asks = Vec::new();
        let most = self.share(id);
        let mut bytes = 0;
        while asks.len() < most
            && bytes < FRAME_BYTES
            && let Some(ask) = self.take(id)
        {
            bytes += ask.encoded_len();
            asks.push(ask);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Down::default() };
        let credit = std::mem::take(&mut stream.read);
        stream.granted += credit;
        Down { welcome: None, asks, credit }
    }

    /// How many asks its next frame takes: of what waits, as much as leaves the other streams theirs.
    fn share(&self, id: u64) -> usize {
        let Some(stream) = self.streams.get(&id) else { return 0 };
        let share = |resource: &ResourceName| {
            let able = self.serving(resource).filter(|stream| stream.credit > 0).count();
            self.waiting[resource].len().div_ceil(able.max(1))
        };
        stream.resources.iter().map(share).sum::<usize>().min(FRAME_ASKS)
    }

    /// The call that has waited longest for anything that this stream serves, if it may have one more.
    fn take(&mut self, id: u64) -> Option<v1::Ask> {
        let stream = self.streams.get_mut(&id).filter(|stream| stream.credit > 0 && !stream.leaving)?;
        let first = |resource: &ResourceName| self.waiting[resource].first().map(|call| (*call, resource.clone()));
        let (call, resource) = stream.resources.iter().filter_map(first).min()?;
        self.waiting.get_mut(&resource)?.remove(&call);
        let at = &mut self.calls.get_mut(&call)?.at;
        let At::Waiting(body) = std::mem::replace(at, At::SentOn(id)) else { return None };
        stream.credit -= 1;
        stream.sent.insert(call);
        Some(v1::Ask { id: call, body: Some(body) })
    }

    pub(super) fn take_in(&mut self, id: u64, frame: Up) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        if frame.hello.is_some() {
            return Err(Violation("a second hello: open another stream"));
        }
        let replies = u32::try_from(frame.replies.len()).unwrap_or(u32::MAX);
        let Some(granted) = stream.granted.checked_sub(replies) else {
            return Err(Violation("more replies than there was credit for"));
        };
        (stream.granted, stream.read) = (granted, stream.read + replies);
        if frame.leaving && !std::mem::replace(&mut stream.leaving, true) {
            stream.credit = 0;
            let resources = stream.resources.clone();
            self.give_up_on(&resources);
        } else if !stream.leaving {
            stream.credit = stream.credit.saturating_add(frame.credit).min(MOST_CREDIT);
        }
        for v1::Reply { id: call, body } in frame.replies {
            self.reply(id, call, body);
        }
        Ok(())
    }

    /// A reply counts only on the stream that was asked; one that nobody waits for any more is dropped.
    fn reply(&mut self, stream: u64, call: u64, body: Option<reply::Body>) {
        if !self.streams.get_mut(&stream).is_some_and(|stream| stream.sent.remove(&call)) {
            return;
        }
        let body = body.ok_or_else(|| NotAnswered::unavailable("the reply is of a newer version: update this node"));
        self.answer(call, body);
    }
}

fn nobody(resource: &ResourceName) -> NotAnswered {
    NotAnswered::unavailable(format!(
        "no participant is attached for {resource}: it is asked once it has opened a stream"
    ))
}
