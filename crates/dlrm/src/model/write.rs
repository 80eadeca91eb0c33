//! A model's directory, written so that it is there whole or not at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use hither_data::output;
use hither_data::safetensors::{Entry, Writer};

use super::{SPEC_FILE, Spec, TENSORS_FILE};
use crate::Error;
use crate::model::spec::Part;

/// Writes a model part by part. `fill` gives the bytes of each part in the order of the file; for
/// a quantised table it is asked for the rows, and writes scales and biases too.
pub fn write(
    dir: &Path,
    spec: &Spec,
    force: bool,
    mut fill: impl FnMut(Part, &Entry, &mut Writer) -> Result<(), Error>,
) -> Result<(), Error> {
    spec.check().map_err(|problem| Error::Spec { path: dir.join(SPEC_FILE), problem })?;
    let (toml, tensors) = (dir.join(SPEC_FILE), dir.join(TENSORS_FILE));
    if !force && (toml.exists() || tensors.exists()) {
        return Err(Error::Exists { dir: dir.into() });
    }
    let text = toml::to_string(spec)
        .map_err(|error| Error::Spec { path: toml.clone(), problem: error.to_string() })?;
    fs::create_dir_all(dir).map_err(Error::io("make the directory", dir))?;
    let (parts, entries): (Vec<Part>, Vec<Entry>) = spec.tensors().into_iter().unzip();
    let made_by = concat!("hither ", env!("CARGO_PKG_VERSION"));
    let metadata =
        BTreeMap::from([("format".into(), "pt".into()), ("made_by".into(), made_by.into())]);
    let mut writer = Writer::create(&tensors, &entries, &metadata)?;
    for (part, entry) in parts.iter().zip(&entries) {
        if !matches!(part, Part::Params(_)) {
            fill(*part, entry, &mut writer)?;
        }
    }
    // An old description must not stand beside new tensors, should this be as far as we come.
    match fs::remove_file(&toml) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io("replace", &toml)(error));
        }
        _ => {}
    }
    writer.finish()?;
    Ok(output::write_file(&toml, text.as_bytes())?)
}
