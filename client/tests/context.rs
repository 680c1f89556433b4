//! A transaction that goes along with calls.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderValue};
use tonic::{Code, Request, service::Interceptor};
use verdict_client::{
    BranchNumber, LogTime, Options, RefusalCode, Verdict, Xid,
    context::{BRANCH, Context, ContextError, XID, accept},
};

fn xid() -> Xid {
    Xid::new(LogTime::from_millis(1_700_000_000_000), 3, 77)
}

fn headers(xid: &str, branch: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(XID, xid.parse().unwrap());
    headers.insert(BRANCH, branch.parse().unwrap());
    headers
}

#[test]
fn it_comes_out_as_it_went_in() {
    let context = Context::new(xid(), 7).unwrap().call(255).unwrap();
    let mut headers = HeaderMap::new();
    context.inject(&mut headers);
    assert_eq!(headers[XID], xid().to_string());
    assert_eq!(Context::extract(&headers), Ok(Some(context)));
    let other = Context::new(xid(), 9).unwrap();
    other.inject(&mut headers);
    assert_eq!(Context::extract(&headers), Ok(Some(other)), "a proxy that copies headers does not keep the old one");
    assert_eq!(Context::extract(&HeaderMap::new()), Ok(None), "a call under no transaction");
}

#[test]
fn what_is_malformed_is_refused_by_name() {
    let good = xid().to_string();
    for (text, wrong) in [("", ContextError::Xid), ("4711", ContextError::Xid), ("0190-zz", ContextError::Xid)] {
        assert_eq!(Context::extract(&headers(text, "1")), Err(wrong), "{text}");
    }
    for number in ["", "0", "-1", "+1", "1.0", "4294967296", "one", "256", "65537", "16777216"] {
        assert_eq!(Context::extract(&headers(&good, number)), Err(ContextError::Branch), "{number}");
    }
    for missing in [XID, BRANCH] {
        let mut headers = headers(&good, "1");
        headers.remove(&missing);
        assert_eq!(Context::extract(&headers), Err(ContextError::Missing(missing)));
    }
    for (repeated, value) in [(XID, good.as_str()), (BRANCH, "1")] {
        let mut headers = headers(&good, "1");
        headers.append(&repeated, value.parse().unwrap());
        assert_eq!(Context::extract(&headers), Err(ContextError::Repeated(repeated)));
    }
    let mut binary = headers(&good, "1");
    binary.insert(XID, HeaderValue::from_bytes(&[0xfe]).unwrap());
    assert_eq!(Context::extract(&binary), Err(ContextError::Xid));
}

#[test]
fn no_two_paths_of_calls_have_one_number() {
    fn walk(context: Context, depth: u32, seen: &mut BTreeSet<BranchNumber>) {
        assert!(seen.insert(context.branch().number), "{context:?}");
        assert_eq!(Context::new(context.xid(), context.branch().number), Ok(context), "it is a path");
        for step in [1, 2, 127, 128, 254, 255] {
            match context.call(step) {
                Ok(next) => walk(next, depth + 1, seen),
                Err(error) => {
                    assert_eq!((depth, error), (4, ContextError::Depth { depth: 5 }));
                    return;
                }
            }
        }
    }
    let mut seen = BTreeSet::new();
    for first in [1, 2, 127, 128, 254, 255] {
        walk(Context::new(xid(), first).unwrap(), 1, &mut seen);
    }
    assert_eq!(seen.len(), 6 + 36 + 216 + 1_296);
    for step in [0, 256, u32::MAX] {
        assert_eq!(Context::new(xid(), 1).unwrap().call(step), Err(ContextError::Step { step }));
    }
}

#[tokio::test]
async fn a_transactions_own_branches_and_its_calls_share_their_numbers() {
    let verdict = Verdict::new(Options::new(["127.0.0.1:1"])).unwrap();
    let mut order = verdict.transaction();
    let seats = order.add("seats".try_into().unwrap(), "7".into()).unwrap();
    let (one, two) = (order.call().unwrap(), order.call().unwrap());
    let wallet = order.add("wallet".try_into().unwrap(), "30.00".into()).unwrap();
    let numbers = [seats.number, one.branch().number, two.branch().number, wallet.number];
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert!(numbers.iter().all(|number| one.call(1).unwrap().branch().number != *number));

    while order.call().is_ok() {}
    let full = order.call().unwrap_err();
    assert_eq!(full.code(), Some(RefusalCode::Invalid), "{full}");
    // It would stand for a call of a call.
    let more = order.add("wallet".try_into().unwrap(), "1.00".into()).unwrap_err();
    assert_eq!(more.code(), Some(RefusalCode::Invalid), "{more}");
    let mut many = verdict.transaction();
    for _ in 0..256 {
        many.add("seats".try_into().unwrap(), "7".into()).unwrap();
    }
    assert_eq!(many.call().unwrap_err().code(), Some(RefusalCode::Invalid), "its numbers are used up");
}

#[test]
fn grpc_carries_it_as_metadata() {
    let mut context = Context::new(xid(), 3).unwrap();
    let request = Interceptor::call(&mut context, Request::new(())).unwrap();
    assert_eq!(request.metadata().get("verdict-branch").unwrap(), "3");
    let accepted = accept(request).unwrap();
    assert_eq!(accepted.extensions().get::<Context>(), Some(&context));
    assert!(accept(Request::new(())).unwrap().extensions().get::<Context>().is_none());

    let mut half = Request::new(());
    half.metadata_mut().insert("verdict-branch", "3".parse().unwrap());
    let refused = accept(half).unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("verdict-xid is missing"), "{refused}");
}
