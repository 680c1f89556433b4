//! The file of bookings: CSV with the columns order_id, customer, trip, seats, price_cents.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::participant::Order;

/// The bookings that come with the program.
const DEFAULT: &str = include_str!("../../../../../examples/bookings.csv");

/// A line of the file.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Counted from 1, the header included, as an editor shows it.
    pub(super) number: u64,
    pub(super) order: Order,
}

/// Why a file of bookings can't be used.
#[derive(Debug, Error)]
pub(crate) enum BookingsError {
    #[error("--bookings {}: cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{file}: {source}; each line needs order_id,customer,trip,seats,price_cents, as the header says")]
    Csv {
        file: String,
        #[source]
        source: csv::Error,
    },
    #[error("{file}: line {line}: {problem}")]
    Line { file: String, line: u64, problem: &'static str },
    #[error("{file}: there is no booking in it")]
    Empty { file: String },
}

/// Reads `path`, or the bookings that come with the program.
pub(super) fn read(path: Option<&Path>) -> Result<Vec<Line>, BookingsError> {
    match path {
        None => parse("examples/bookings.csv", DEFAULT),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|source| BookingsError::Read { path: path.to_owned(), source })?;
            parse(&path.display().to_string(), &text)
        }
    }
}

fn parse(file: &str, text: &str) -> Result<Vec<Line>, BookingsError> {
    let wrong = |source| BookingsError::Csv { file: file.to_owned(), source };
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(wrong)?.clone();
    let mut lines = Vec::new();
    for record in reader.records() {
        let record = record.map_err(wrong)?;
        let number = record.position().map_or(0, csv::Position::line);
        let order: Order = record.deserialize(Some(&header)).map_err(wrong)?;
        let bad = |problem| Err(BookingsError::Line { file: file.to_owned(), line: number, problem });
        if order.order_id.is_empty() || order.customer.is_empty() || order.trip.is_empty() {
            return bad("order_id, customer and trip must not be empty");
        }
        if order.order_id.len().max(order.customer.len()).max(order.trip.len()) > 200 {
            return bad("order_id, customer and trip have at most 200 bytes");
        }
        if order.seats == 0 {
            return bad("seats must be above 0");
        }
        lines.push(Line { number, order });
    }
    if lines.is_empty() {
        return Err(BookingsError::Empty { file: file.to_owned() });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_default_file_has_all_that_the_demo_shows() {
        let lines = read(None).unwrap();
        assert!((1_900..=2_100).contains(&lines.len()), "{}", lines.len());
        let (mut orders, mut trips, mut customers) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for Line { order, .. } in &lines {
            *orders.entry(&order.order_id).or_insert(0) += 1;
            *trips.entry(&order.trip).or_insert(0) += order.seats;
            *customers.entry(&order.customer).or_insert(0) += order.price_cents;
        }
        assert!(orders.values().any(|times| *times > 1), "a repeated order id");
        assert!(trips.values().any(|seats| *seats > 50), "a sold-out trip");
        assert!(customers.values().any(|cents| *cents > 25_000), "a balance too low");
    }

    #[test]
    fn bad_files_are_refused_with_their_line() {
        for (text, expected) in [
            ("", "no booking"),
            ("order_id,customer,trip,seats,price_cents\n", "no booking"),
            ("order_id,customer,trip,seats\na,b,c,1\n", "price_cents"),
            ("order_id,customer,trip,seats,price_cents\na,b,c,x,1\n", "line: 2"),
            ("order_id,customer,trip,seats,price_cents\na,b,c,1,1\na,b,c,0,1\n", "line 3: seats"),
            ("order_id,customer,trip,seats,price_cents\n,b,c,1,1\n", "line 2: order_id"),
            ("order_id,customer,trip,seats,price_cents\na,b\n", "line: 2"),
        ] {
            let error = parse("b.csv", text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.starts_with("b.csv"), "{text:?}: {error}");
        }
    }
}
