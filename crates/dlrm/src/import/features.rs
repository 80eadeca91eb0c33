//! Which feature looks up which table: as the user says, else as the file implies.

use std::collections::BTreeSet;

use hither_data::Checkpoint;

use super::batched::Batched;
use super::names::{Family, Names};
use super::{Error, Options};

/// A sparse feature and the index of the table that it looks up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    pub name: String,
    pub table: usize,
}

pub fn find(
    checkpoint: &Checkpoint,
    names: &Names,
    options: &Options,
    batched: Option<&Batched>,
    notes: &mut Vec<String>,
) -> Result<Vec<Feature>, Error> {
    let bad = |problem| Error::Import { path: checkpoint.path.clone(), problem };
    let told = options.tables.is_some() && !options.poolings.is_empty();
    if batched.is_some_and(|batched| batched.groups > 1) && !told {
        return Err(bad(format!(
            "the tables have different poolings, which the file does not name, and their order is \
             not that of the features; give both, such as --tables {0} --pooling sum,{1}=mean",
            names.tables.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(","),
            names.tables.last().map_or("", |(name, _)| name),
        )));
    }
    if let Some(wanted) = &options.tables {
        return as_named(names, wanted).map_err(|error| match error {
            Named::Unknown(name) => Error::UnknownTable { name, known: names.known_tables() },
            Named::Twice(name) => {
                bad(format!("--tables: more than one feature is named `{name}`; rename one"))
            }
        });
    }
    if names.family == Family::Torchrec && checkpoint.order.is_none() && names.tables.len() > 1 {
        notes.push(format!(
            "the file does not keep the order of its tables; they are taken as {}; if the model's \
             features have another order, give it with --tables",
            names.known_tables()
        ));
    }
    let one_each = vec![1; names.tables.len()];
    let lookups = match batched {
        Some(batched) if batched.features() != names.tables.len() => {
            batched.lookups_per_table.clone().ok_or_else(|| {
                bad(format!(
                    "{} features look up {} tables, and the file does not say which; name the \
                     tables in the order of the features, a shared one several times: --tables {}",
                    batched.features(),
                    names.tables.len(),
                    names.example_tables()
                ))
            })?
        }
        _ => one_each,
    };
    let mut features = Vec::new();
    let mut used = BTreeSet::new();
    for (table, count) in lookups.into_iter().enumerate() {
        for _ in 0..count {
            features.push(Feature { name: unused(&names.tables[table].0, &mut used), table });
        }
    }
    Ok(features)
}

/// Why a list of tables was refused.
enum Named {
    Unknown(String),
    Twice(String),
}

/// The features that the user lists; tables that are not listed follow in their order.
fn as_named(names: &Names, wanted: &[String]) -> Result<Vec<Feature>, Named> {
    let position = |wanted: &str| names.tables.iter().position(|(name, _)| name == wanted);
    let mut used = BTreeSet::new();
    let mut features = Vec::new();
    for wanted in wanted {
        let (feature, table) = match wanted.split_once('=') {
            Some((feature, table)) if position(wanted).is_none() => (Some(feature), table),
            _ => (None, wanted.as_str()),
        };
        let index = position(table).ok_or_else(|| Named::Unknown(table.into()))?;
        let name = match feature {
            Some(feature) if used.insert(feature.to_string()) => feature.into(),
            Some(feature) => return Err(Named::Twice(feature.into())),
            None => unused(table, &mut used),
        };
        features.push(Feature { name, table: index });
    }
    let named: BTreeSet<usize> = features.iter().map(|feature| feature.table).collect();
    for (index, (table, _)) in names.tables.iter().enumerate() {
        if !named.contains(&index) {
            features.push(Feature { name: unused(table, &mut used), table: index });
        }
    }
    Ok(features)
}

/// A table's name for the first feature that looks it up, `name.2` for the second, and so on.
fn unused(table: &str, used: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|n| format!("{table}.{n}"));
    let mut candidates = std::iter::once(table.to_string()).chain(numbered);
    let name = candidates.find(|name| !used.contains(name)).unwrap_or_default();
    used.insert(name.clone());
    name
}
