//! `verdict resource`: looks whether the databases that a configuration names can keep a promise.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, sync::Arc};

use clap::{Args, Subcommand};
use serde::Serialize;
use thiserror::Error;
use verdict_client::{
    participant::{NotAnswered, with_causes},
    resource::xa::{Finding, Grade, XaDatabase},
};
use verdict_protocol::ResourceName;

use crate::{
    client::{AskError, Format, print, table},
    config::{Config, ConfigError},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Resource {
    /// Look at databases from here: versions, rights, and settings under which a vote is worth nothing.
    ///
    /// Exits with 1 if a database can't be asked, or one of its settings is wrong.
    Check(Check),
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The resource's name in the configuration.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// Every database that the configuration names.
    #[arg(long)]
    all: bool,
    /// The node's configuration.
    #[arg(long, value_name = "FILE", env = "VERDICT_CONFIG")]
    config: PathBuf,
    /// For people, or for programs.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Why nothing was looked at.
#[derive(Debug, Error)]
pub(crate) enum ResourceError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{name}: no database of the configuration has this name; there are {known}")]
    Unknown { name: String, known: String },
    #[error(transparent)]
    Output(#[from] AskError),
}

#[derive(Debug, Serialize)]
struct View {
    resource: String,
    /// Why it can't be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    settings: Vec<SettingView>,
}

#[derive(Debug, Serialize)]
struct SettingView {
    setting: &'static str,
    value: String,
    grade: &'static str,
    advice: String,
}

impl Resource {
    pub(crate) async fn run(self) -> Result<ExitCode, ResourceError> {
        let Self::Check(Check { name, all: _, config, output }) = self;
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
        let databases = chosen(Config::read(&config, environment)?.databases, name)?;
        let mut views = Vec::new();
        for (name, database) in databases {
            views.push(view(&name, database.check().await));
        }
        print(output, &views, |views| match views.is_empty() {
            true => "the configuration names no database".to_owned(),
            false => views.iter().map(text).collect::<Vec<_>>().join("\n\n"),
        })?;
        let wrong = |view: &View| view.error.is_some() || view.settings.iter().any(|row| row.grade == ERROR);
        Ok(ExitCode::from(u8::from(views.iter().any(wrong))))
    }
}

fn chosen(
    databases: BTreeMap<ResourceName, Arc<dyn XaDatabase>>,
    name: Option<String>,
) -> Result<BTreeMap<ResourceName, Arc<dyn XaDatabase>>, ResourceError> {
    let Some(name) = name else { return Ok(databases) };
    let known = databases.keys().map(ResourceName::as_str).collect::<Vec<_>>().join(", ");
    let known = if known.is_empty() { "none".to_owned() } else { known };
    let one: BTreeMap<_, _> = databases.into_iter().filter(|(known, _)| known.as_str() == name).collect();
    if one.is_empty() { Err(ResourceError::Unknown { name, known }) } else { Ok(one) }
}

const ERROR: &str = "ERROR";

fn view(name: &ResourceName, found: Result<Vec<Finding>, NotAnswered>) -> View {
    let resource = name.to_string();
    match found {
        Err(error) => View { resource, error: Some(with_causes(&error)), settings: Vec::new() },
        Ok(found) => {
            let row = |finding: Finding| SettingView {
                setting: finding.setting,
                value: finding.value,
                grade: match finding.grade {
                    Grade::Fine => "ok",
                    Grade::Warning => "warning",
                    Grade::Error => ERROR,
                },
                advice: finding.advice,
            };
            View { resource, error: None, settings: found.into_iter().map(row).collect() }
        }
    }
}

fn text(view: &View) -> String {
    if let Some(error) = &view.error {
        return format!("{}: {ERROR}: {error}", view.resource);
    }
    let mut rows = table(&["SETTING", "VALUE", "", "ADVICE"]);
    for row in &view.settings {
        rows.add_row([row.setting, row.value.as_str(), row.grade, row.advice.as_str()]);
    }
    format!("{}\n\n{rows}", view.resource)
}
