//! Entries as bytes.

use proptest::prelude::*;
use verdict_protocol::{DecodeError, Entry, Thawed, decode_answers};

use crate::{build::*, properties::commands};

#[test]
fn an_entry_of_a_newer_version_is_refused_clearly() {
    let mut bytes = Entry { at: at(0), commands: vec![abort(xid(1))] }.encode().to_vec();
    bytes[0] = Entry::VERSION + 1;
    let error = Entry::decode(&bytes).unwrap_err();
    assert_eq!(error, DecodeError::Newer { found: Entry::VERSION + 1, known: Entry::VERSION });
    assert!(error.to_string().contains("run a newer one"), "{error}");
    assert_eq!(Entry::decode(&[]), Err(DecodeError::Empty));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn entries_come_back_as_they_were(commands in prop::collection::vec(commands(), 0..6), ms in 0_u64..1 << 40) {
        let entry = Entry { at: at(ms), commands };
        prop_assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }

    #[test]
    fn garbage_is_an_error_and_no_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), version in 0_u8..3) {
        let _ = decode_answers(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        let _ = Entry::decode(&bytes);
        let _ = Thawed::decode(vec![("open-at-1".to_owned(), bytes.clone().into())]);
        let _ = Thawed::decode(vec![("bucket-1".to_owned(), bytes.into())]);
    }

    #[test]
    fn a_damaged_entry_is_an_error_or_another_entry(place in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let mut bytes = Entry { at: at(0), commands: vec![prepare(xid(1), voted(&[(1, PREPARED)]))] }.encode().to_vec();
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        let _ = Entry::decode(&bytes);
        prop_assert!(Entry::decode(&bytes[..place]).is_err() || place == 0, "a part of an entry is none");
    }
}
