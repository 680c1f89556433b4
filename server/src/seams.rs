//! What a node takes from the world: time, chance, disk and links. The simulator passes its own.

use std::{collections::BTreeMap, fmt, io, path::Path, sync::Arc, time::Duration};

use rand::{TryRng as _, rngs::SysRng};
use verdict_client::{
    Clock, SystemClock,
    participant::{RemoteParticipant, ResourceManager},
    resource::xa::XaDatabase,
};
use verdict_protocol::ResourceName;
use verdict_raft_log::{
    NodeId, PeerLink,
    files::{Disk, RealDisk, Spawn},
};

/// What a node takes from the world.
#[derive(Debug)]
pub struct Seams {
    pub disk: Arc<dyn Disk>,
    /// Who drives the log's files: a thread, or a task that sleeps between the steps.
    pub log_driver: Spawn,
    /// The wall clock. Durations are measured with the runtime's own.
    pub clock: Arc<dyn Clock>,
    /// Where random numbers start.
    pub seed: u64,
    pub links: Arc<dyn Links>,
    /// Those that the options name.
    pub databases: Databases,
}

/// Databases that prepare by themselves, each as its driver speaks to it.
pub type Databases = BTreeMap<ResourceName, Arc<dyn XaDatabase>>;

/// How a node reaches others.
pub trait Links: fmt::Debug + Send + Sync + 'static {
    /// The participants that the configuration names with an endpoint.
    ///
    /// # Errors
    /// A sentence that names the endpoint and what is wrong with it.
    fn participants(&self, resources: &BTreeMap<ResourceName, String>) -> Result<Participants, String>;

    /// A participant that is reached by the streams that it opens, given the plain way: the simulator wraps it in faults.
    fn stream(&self, resource: &ResourceName, plain: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager>;

    /// The link to the other nodes, given the plain one: the simulator wraps it in faults.
    fn peers(&self, node: NodeId, plain: Arc<dyn PeerLink>) -> Arc<dyn PeerLink>;
}

/// Whom a node can ask to prepare.
pub type Participants = BTreeMap<ResourceName, Arc<dyn ResourceManager>>;

/// The plain links of a process among others: gRPC to every endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcLinks;

/// How long a connection to a participant may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// How long any call to a participant may take: above what the engine gives one.
const CALL_WITHIN: Duration = Duration::from_secs(60);

impl Links for GrpcLinks {
    fn participants(&self, resources: &BTreeMap<ResourceName, String>) -> Result<Participants, String> {
        resources
            .iter()
            .map(|(name, address)| {
                let endpoint = verdict_client::endpoint(address.trim_start_matches("http://"), CONNECT_WITHIN)
                    .ok_or_else(|| format!("{name}: {address:?} is no endpoint: write http://host:port"))?;
                let participant = RemoteParticipant::new(name.clone(), &endpoint, CALL_WITHIN);
                Ok((name.clone(), Arc::new(participant) as Arc<dyn ResourceManager>))
            })
            .collect()
    }

    fn stream(&self, _: &ResourceName, plain: Arc<dyn ResourceManager>) -> Arc<dyn ResourceManager> {
        plain
    }

    fn peers(&self, _: NodeId, plain: Arc<dyn PeerLink>) -> Arc<dyn PeerLink> {
        plain
    }
}

impl Seams {
    /// What a process takes: files in `data`, which it locks; a thread that drives the log; the system's clock and
    /// random numbers; gRPC; no databases.
    ///
    /// # Errors
    /// If the folder cannot be made or read, or another process has it open.
    pub fn production(data: &Path) -> io::Result<Self> {
        let disk = RealDisk::open(data)?;
        let seed = SysRng.try_next_u64().map_err(io::Error::other)?;
        Ok(Self {
            disk: Arc::new(disk),
            log_driver: Spawn::Thread,
            clock: Arc::new(SystemClock),
            seed,
            links: Arc::new(GrpcLinks),
            databases: Databases::new(),
        })
    }
}
