//! Asking a cluster from the command line.

use std::{num::ParseIntError, time::Duration};

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use serde::Serialize;
use thiserror::Error;
use verdict_client::{CallError, Options, OptionsError, Verdict};
use verdict_protocol::IdError;

#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// A node of the cluster, host:port; any will do. Several: repeat it, or separate them with commas.
    #[arg(
        long = "node",
        env = "VERDICT_NODES",
        value_delimiter = ',',
        default_value = "127.0.0.1:7401",
        value_name = "HOST:PORT"
    )]
    nodes: Vec<String>,
    /// How long to try before giving up, such as 500ms, 5s or 2m.
    #[arg(long, value_parser = duration, default_value = "5s")]
    timeout: Duration,
    /// For people, or for programs.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub(crate) output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Why a question has no answer.
#[derive(Debug, Error)]
pub(crate) enum AskError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Xid(#[from] IdError),
    #[error("the answer cannot be written")]
    Output(#[from] std::io::Error),
}

impl Target {
    pub(crate) fn connect(&self) -> Result<Verdict, OptionsError> {
        Verdict::new(Options { deadline: self.timeout, ..Options::new(&self.nodes) })
    }

    /// Prints `view` as JSON, or what `text` makes of it.
    pub(crate) fn print<T: Serialize>(&self, view: &T, text: impl FnOnce(&T) -> String) -> Result<(), AskError> {
        print(self.output, view, text)
    }
}

pub(crate) fn print<T: Serialize>(format: Format, view: &T, text: impl FnOnce(&T) -> String) -> Result<(), AskError> {
    use std::io::Write as _;
    let text = match format {
        Format::Text => text(view),
        Format::Json => serde_json::to_string_pretty(view).map_err(std::io::Error::other)?,
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(())
}

/// An empty table in the style of all of them.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// `500ms`, `5s`, `2m`, `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|error: ParseIntError| format!("{error}: write 500ms, 5s, 2m or 1h"))?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("a unit is needed: write 500ms, 5s, 2m or 1h".to_owned()),
    };
    Ok(Duration::from_millis(number.saturating_mul(millis)))
}

/// A time span in two or three digits.
pub(crate) fn short(span: Duration) -> String {
    let millis = span.as_millis();
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", span.as_secs_f64()),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis / 1_000 % 60),
        3_600_000..86_400_000 => format!("{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
        _ => format!("{} d {} h", millis / 86_400_000, millis / 3_600_000 % 24),
    }
}

/// A number with thin groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("5").is_err() && duration("s").is_err() && duration("5d").is_err());
        assert_eq!(short(Duration::from_millis(61_500)), "1 min 1 s");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123), "123");
    }
}
