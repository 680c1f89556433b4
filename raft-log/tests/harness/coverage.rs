//! What histories did.

/// What a history did, to see that histories do what they should.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    pub operations: u64,
    pub crashes: u64,
    pub kills: u64,
    pub failures: u64,
    pub damages: u64,
    pub repairs: u64,
    pub torn: u64,
    pub purges: u64,
}

impl Coverage {
    pub fn add(&mut self, other: &Coverage) {
        self.operations += other.operations;
        self.crashes += other.crashes;
        self.kills += other.kills;
        self.failures += other.failures;
        self.damages += other.damages;
        self.repairs += other.repairs;
        self.torn += other.torn;
        self.purges += other.purges;
    }
}
