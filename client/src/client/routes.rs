//! Which node to send an attempt to.
//!
//! One connection a node, made when first needed and shared by all calls. The leader, once known, is preferred; a
//! node that leaves an attempt without an answer is suspected for a while, and until then neither tried first nor
//! believed to be the leader on another's word.

use std::time::Duration;

use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use super::options::{Options, OptionsError};

/// How long a node is suspected: about what an election takes, so that the word of the others about who leads has
/// been renewed when it ends.
const SUSPICION: Duration = Duration::from_secs(1);

/// How many addresses are kept beside the configured ones. Leaders that the configuration doesn't name are few: nodes
/// that were added since.
const LEARNT: usize = 8;

#[derive(Debug)]
struct Node {
    address: String,
    channel: Channel,
    suspected_until: Option<Instant>,
    answered: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Routes {
    nodes: Vec<Node>,
    configured: usize,
    preferred: usize,
    connect_timeout: Duration,
}

impl Routes {
    /// `start`: a random number that spreads clients over the nodes until they know the leader.
    pub(super) fn new(options: &Options, start: u64) -> Result<Self, OptionsError> {
        let mut routes =
            Self { nodes: Vec::new(), configured: 0, preferred: 0, connect_timeout: options.connect_timeout };
        for address in &options.nodes {
            let node = routes.node(address).ok_or_else(|| OptionsError::Address { address: address.clone() })?;
            routes.nodes.push(node);
        }
        let configured = routes.nodes.len();
        let start = start.checked_rem(configured as u64).ok_or(OptionsError::NoNodes)?;
        routes.configured = configured;
        routes.preferred = usize::try_from(start).unwrap_or(0);
        Ok(routes)
    }

    fn node(&self, address: &str) -> Option<Node> {
        let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/').to_owned();
        let channel = endpoint(&address, self.connect_timeout)?.connect_lazy();
        Some(Node { address, channel, suspected_until: None, answered: None })
    }

    /// How many nodes the options name: at least one.
    pub(super) fn configured(&self) -> u32 {
        u32::try_from(self.configured).unwrap_or(u32::MAX)
    }

    /// The configured nodes in turn.
    pub(super) fn nth(&self, number: u64) -> (String, Channel) {
        let place = number.checked_rem(self.configured as u64).unwrap_or(0);
        let node = &self.nodes[usize::try_from(place).unwrap_or(0)];
        (node.address.clone(), node.channel.clone())
    }

    /// The preferred node, or the next one after it that is not suspected.
    pub(super) fn pick(&self, now: Instant) -> (String, Channel) {
        let order = (0..self.nodes.len()).map(|step| &self.nodes[(self.preferred + step) % self.nodes.len()]);
        let node = order.clone().find(|node| !node.suspected(now)).unwrap_or_else(|| {
            // All are: the one whose suspicion ends first.
            order.min_by_key(|node| node.suspected_until).expect("there is at least one node")
        });
        (node.address.clone(), node.channel.clone())
    }

    /// A node answered, be it with an error of its own; `leader` is where it says the leader is.
    pub(super) fn answered(&mut self, address: &str, leader: Option<&str>, now: Instant) {
        if let Some(index) = self.index(address) {
            self.nodes[index].answered = Some(now);
            self.nodes[index].suspected_until = None;
        }
        if let Some(leader) = leader {
            self.prefer(leader, now);
        }
    }

    /// An attempt that was sent to a node at `since` got no answer. It is not held against a node that has answered
    /// other calls meanwhile: then it is the call that takes long.
    pub(super) fn unanswered(&mut self, address: &str, since: Instant, now: Instant) {
        let Some(index) = self.index(address) else { return };
        let node = &mut self.nodes[index];
        if node.answered.is_some_and(|at| at >= since) {
            return;
        }
        node.suspected_until = Some(now + SUSPICION);
        self.move_on(address);
    }

    /// A node can't serve now: another one is next.
    pub(super) fn move_on(&mut self, address: &str) {
        if self.nodes[self.preferred].address == address {
            self.preferred = (self.preferred + 1) % self.nodes.len();
        }
    }

    fn index(&self, address: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == address)
    }

    fn prefer(&mut self, address: &str, now: Instant) {
        let index = self.index(address).or_else(|| {
            let node = self.node(address)?;
            if self.nodes.len() < self.configured + LEARNT {
                self.nodes.push(node);
            } else {
                *self.nodes.last_mut()? = node;
            }
            Some(self.nodes.len() - 1)
        });
        if let Some(index) = index.filter(|index| !self.nodes[*index].suspected(now)) {
            self.preferred = index;
        }
    }
}

impl Node {
    fn suspected(&self, now: Instant) -> bool {
        self.suspected_until.is_some_and(|until| now < until)
    }
}

/// A node's or a participant's endpoint, set up so that a peer that is cut off is noticed. None if `address` is not
/// `host:port`.
pub fn endpoint(address: &str, connect_timeout: Duration) -> Option<Endpoint> {
    let (host, port) = address.rsplit_once(':')?;
    if host.is_empty() || port.parse::<u16>().is_err() {
        return None;
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    let endpoint = endpoint
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        // A connection through a node that was cut off is dropped after about 4 seconds; calls have moved on before.
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(2));
    Some(endpoint)
}
