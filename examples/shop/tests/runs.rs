//! The example does what its README says.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

#[test]
fn every_payment_has_its_goods() {
    let output = Command::new(env!("CARGO_BIN_EXE_shop")).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in [
        "alice buys 2 tea for 10.00: COMMITTED\n",
        "bob buys 1 cup for 8.00, each call sent 3 times: COMMITTED\n",
        "carol buys 1 tea for 99.00: ABORTED: carol has not enough money\n",
        "alice buys 100 cup for 1.00: ABORTED: there are not 100 of cup\n",
        "carol buys 1 tea for 5.00: COMMITTED\n",
        "without a transaction: 400 Bad Request: take within a transaction",
        "with a malformed one: 400 Bad Request: verdict-xid is not the xid of a transaction",
        "3 paid, 3 taken, 0 held: every payment has its goods\n",
    ] {
        assert!(said.contains(line), "{line:?} is not in\n{said}");
    }
    assert_eq!(said.matches("called again, late: payments: CLOSED").count(), 5, "{said}");
    assert_eq!(said.matches("; stock: CLOSED").count(), 5, "{said}");
}
