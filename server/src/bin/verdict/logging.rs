//! Logs on standard error.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

#[derive(Debug, Args)]
pub(crate) struct Logging {
    /// How lines of the log look. What is logged: VERDICT_LOG, such as `info` or `verdict_server=debug,warn`.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "VERDICT_LOG_FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl Logging {
    /// # Errors
    /// If `VERDICT_LOG` makes no sense: says so instead of logging something else.
    pub(crate) fn start(&self) -> Result<(), String> {
        let filter = match std::env::var("VERDICT_LOG") {
            Ok(filter) => EnvFilter::try_new(&filter).map_err(|error| {
                format!("VERDICT_LOG: {filter:?} is no filter ({error}): write info, or target=level pairs with commas")
            })?,
            // openraft tells of every message it could not send; the nodes' own lines say what matters of that.
            Err(_) => EnvFilter::new("info,openraft=error"),
        };
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
            LogFormat::Json => builder.json().init(),
        }
        Ok(())
    }
}
