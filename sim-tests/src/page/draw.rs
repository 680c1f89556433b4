//! The page: text, tables and bars, without scripts.

use std::fmt::Write as _;

use super::{Durations, Longest, Page, Seed};
use crate::chart::{Bar, Kind};

const FRAME: &str = include_str!("frame.html");

pub(super) fn html(page: &Page) -> String {
    let title = if page.passed { "All held" } else { "Something did not hold" };
    FRAME
        .replace("{{state}}", if page.passed { "good" } else { "bad" })
        .replace("{{title}}", title)
        .replace("{{lead}}", &lead(page))
        .replace("{{tiles}}", &tiles(page))
        .replace("{{failures}}", &failures(page))
        .replace("{{spreads}}", &page.spreads.iter().map(spread).collect::<String>())
        .replace("{{longest}}", &page.longest.as_ref().map_or_else(String::new, longest))
        .replace("{{dangers}}", &dangers(page))
        .replace("{{charts}}", &page.sample.iter().map(chart).collect::<String>())
        .replace("{{counters}}", &counters(page))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number as people read it.
fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Milliseconds as people read them.
fn duration(millis: f64) -> String {
    match millis {
        0.0 => "0".to_owned(),
        ..1.0 => format!("{:.0} µs", millis * 1_000.0),
        ..10.0 => format!("{millis:.1} ms"),
        ..1_000.0 => format!("{millis:.0} ms"),
        ..60_000.0 => format!("{:.1} s", millis / 1_000.0),
        _ => format!("{:.1} min", millis / 60_000.0),
    }
}

fn lead(page: &Page) -> String {
    let last = page.first.saturating_add(page.seeds.saturating_sub(1));
    let flaw = page.flaw.as_ref().map_or_else(String::new, |flaw| format!(", with the seeded bug {}", escape(flaw)));
    format!("Seeds {} to {last}{flaw}: {:.0} s of wall time, {} at a time.", page.first, page.wall_seconds, page.jobs)
}

fn tiles(page: &Page) -> String {
    let counted = |of: &str| page.counters.iter().find(|(name, _)| name == of).map_or(0, |(_, count)| *count);
    let decided = counted("transactions committed") + counted("transactions aborted");
    let tile = |value: String, what: &str| format!("<div><b>{value}</b><span>{what}</span></div>\n");
    let mut tiles = tile(number(page.seeds), "seeds");
    tiles += &tile(number(page.failed), "failed");
    tiles += &tile(number(decided), "transactions decided");
    tiles += &tile(format!("{:.1} h", page.simulated_hours), "simulated");
    tiles
}

fn failures(page: &Page) -> String {
    if page.shortcomings.is_empty() {
        return String::new();
    }
    let mut text = "<section><h2>What did not hold</h2><ul class=\"wrong\">".to_owned();
    for shortcoming in &page.shortcomings {
        let _ = write!(text, "<li>{}</li>", escape(shortcoming));
    }
    text += "</ul>";
    for seed in &page.failures {
        let _ = write!(text, "<article class=\"failure\"><h3>Seed {}</h3><ul>", seed.seed);
        for violation in &seed.violations {
            let _ = write!(text, "<li>{}</li>", escape(violation));
        }
        let _ = write!(text, "</ul><pre>{}</pre>{}</article>", escape(&seed.reproduce), chart(seed));
    }
    text + "</section>"
}

const WIDTH: f64 = 1_000.0;

/// Columns over a logarithmic scale of time.
fn spread(spread: &Durations) -> String {
    let Durations { name, count, p50, p99, p999, most, steps } = spread;
    let mut text = format!("<figure><figcaption>{} <span>{} in all</span></figcaption>", escape(name), number(*count));
    let facts = [("p50", p50), ("p99", p99), ("p99.9", p999), ("most", most)];
    text += "<dl class=\"facts\">";
    for (fact, value) in facts {
        let _ = write!(text, "<div><dt>{fact}</dt><dd>{}</dd></div>", duration(*value));
    }
    text += "</dl>";
    let tallest = steps.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1) as f64;
    let wide = WIDTH / steps.len().max(1) as f64;
    let _ = write!(text, "<svg viewBox=\"0 0 {WIDTH} 190\" role=\"img\" aria-label=\"{}\">", escape(name));
    let mut labelled = f64::NEG_INFINITY;
    for (at, (to, count)) in steps.iter().enumerate() {
        let left = at as f64 * wide;
        // Tails matter: what is there at all is seen.
        let height = if *count == 0 { 0.0 } else { (*count as f64 / tallest * 150.0).max(2.0) };
        let _ = write!(
            text,
            "<rect class=\"column\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>up to {}: {}\
             </title></rect>",
            left + 1.0,
            155.0 - height,
            (wide - 2.0).max(1.0),
            duration(*to),
            number(*count),
        );
        if left - labelled > 95.0 {
            labelled = left;
            let _ = write!(text, "<text x=\"{:.1}\" y=\"180\">{}</text>", left + wide, duration(*to));
        }
    }
    text + "<line class=\"axis\" x1=\"0\" x2=\"1000\" y1=\"155\" y2=\"155\"/></svg></figure>"
}

fn longest(longest: &Longest) -> String {
    let Longest { lasted, seed, what } = longest;
    let what = escape(what);
    format!("<p>Longest with a majority connected: {}, in seed {seed}: {what}</p>", duration(*lasted))
}

fn dangers(page: &Page) -> String {
    let mut text = String::new();
    for danger in &page.dangers {
        let class = if danger.met < danger.least { "bad" } else { "good" };
        let name = escape(&danger.name);
        let least = if danger.least == 0 { "–".to_owned() } else { number(danger.least) };
        let met = number(danger.met);
        let _ = write!(text, "<tr class=\"{class}\"><td>{name}</td><td>{met}</td><td>{least}</td></tr>");
    }
    text
}

fn counters(page: &Page) -> String {
    let mut text = String::new();
    for (name, count) in &page.counters {
        let _ = write!(text, "<tr><td>{}</td><td>{}</td></tr>", escape(name), number(*count));
    }
    text
}

const LABELS: f64 = 190.0;
const ROW: f64 = 22.0;

/// A seed's bars over simulated time.
fn chart(seed: &Seed) -> String {
    let chart = &seed.chart;
    if chart.length == 0 {
        return String::new();
    }
    let scale = (WIDTH - LABELS) / chart.length as f64;
    let x = |at: u64| LABELS + at as f64 * scale;
    let bottom = chart.rows.len() as f64 * ROW + 4.0;
    let mut text = format!(
        "<figure><figcaption>Seed {} <span>trace hash {}</span></figcaption><svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" \
         aria-label=\"Timeline of seed {}\">",
        seed.seed,
        seed.hash,
        bottom + 26.0,
        seed.seed
    );
    if let Some(end) = chart.faults_end {
        let (left, width) = (x(end), WIDTH - x(end));
        let _ = write!(
            text,
            "<rect class=\"healing\" x=\"{left:.1}\" y=\"0\" width=\"{width:.1}\" height=\"{bottom:.1}\"><title>nothing \
             strikes any more</title></rect>"
        );
    }
    for (at, row) in chart.rows.iter().enumerate() {
        let top = at as f64 * ROW;
        let _ = write!(text, "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>", top + 15.5, escape(&row.name));
        let _ = write!(
            text,
            "<line class=\"track\" x1=\"{LABELS}\" x2=\"{WIDTH}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
            top + 11.0,
            top + 11.0
        );
        for Bar { kind, from, to, what } in &row.bars {
            let class = match kind {
                Kind::Leads => "leads",
                Kind::Down => "down",
                Kind::Fault => "fault",
            };
            let width = (x(*to) - x(*from)).max(2.0);
            let _ = write!(
                text,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\" rx=\"2\"><title>{}: {} \
                 to {}</title></rect>",
                x(*from),
                top + 4.0,
                escape(what),
                duration(*from as f64),
                duration(*to as f64)
            );
        }
    }
    let seconds = chart.length / 1_000;
    let step = (seconds / 8).max(1);
    for second in (0..=seconds).step_by(usize::try_from(step).unwrap_or(1)) {
        let _ = write!(text, "<text x=\"{:.1}\" y=\"{:.1}\">{second} s</text>", x(second * 1_000), bottom + 18.0);
    }
    text + "</svg></figure>"
}
