//! Digests of worlds, some millions a walk: 64 bits, by multiplying and folding as wyhash does.

use std::{
    fmt::{self, Write},
    hash::{Hash, Hasher},
};

use verdict_protocol::Ledger;

#[derive(Clone, Copy, Debug, Default)]
pub struct Digest(u64);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        // The length too, so that zeros at the end count.
        self.write_u64(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x2d35_8dcc_aa6c_78a5)
            * u128::from(word.rotate_left(32) ^ 0x8bb8_4b93_962e_acc9);
        let folded = (product >> 64) ^ (product & u128::from(u64::MAX));
        self.0 = (self.0 ^ u64::try_from(folded).expect("it is folded to 64 bits")).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        let folded = self.0 ^ (self.0 >> 32);
        folded.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (folded >> 29)
    }
}

pub fn digest_of(value: &impl Hash) -> u64 {
    let mut digest = Digest::default();
    value.hash(&mut digest);
    digest.finish()
}

/// Equal for ledgers that are equal but for where in their logs things were decided.
pub fn ledger_digest(ledger: &Ledger) -> u64 {
    /// Digests what is written, without the numbers after `index`.
    #[derive(Default)]
    struct Written {
        digest: Digest,
        is_index: bool,
    }

    impl Write for Written {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            if !(self.is_index && text.bytes().all(|byte| byte.is_ascii_digit())) {
                self.digest.write(text.as_bytes());
            }
            self.is_index = text == "index" || (self.is_index && text == ": ");
            Ok(())
        }
    }

    let mut written = Written::default();
    write!(written, "{ledger:?}").expect("digesting does not fail");
    written.digest.finish()
}
