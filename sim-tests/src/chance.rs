//! One seed, many independent streams of chance: what one part draws does not shift what another draws.

use std::fmt;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// The stream of this name.
#[must_use]
pub fn stream(seed: u64, name: &str) -> StdRng {
    let mut mixed = Fnv::new();
    mixed.feed(&seed.to_le_bytes());
    mixed.feed(name.as_bytes());
    StdRng::seed_from_u64(mixed.value())
}

/// One of these.
pub fn pick<'a, T>(random: &mut StdRng, of: &'a [T]) -> &'a T {
    &of[random.random_range(0..of.len())]
}

/// FNV-1a, 64 bits: a hash that is the same on every machine and in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv(u64);

impl Fnv {
    #[must_use]
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// Text is hashed as it is written, and never kept.
impl fmt::Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.feed(text.as_bytes());
        Ok(())
    }
}

impl Default for Fnv {
    fn default() -> Self {
        Self::new()
    }
}
