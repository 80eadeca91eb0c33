//! Which layout a path is in, by what is there.

use std::path::Path;

use hither_data::{Bytes, Checkpoint, Npz, npz};

use super::{Format, bad, bags, mapped, masks, shchur};
use crate::Error;

pub fn format(path: &Path) -> Result<Format, Error> {
    let start = Bytes::map(path)?;
    if start.starts_with(npz::MAGIC) {
        return archive(&Npz::open(path)?);
    }
    let checkpoint = Checkpoint::open(path)?;
    if mapped::fits(&checkpoint.metadata) {
        return Ok(Format::Mapped);
    }
    Err(bad(path, "it holds tensors, but no graph of ours: its metadata do not say so"))
}

fn archive(npz: &Npz) -> Result<Format, Error> {
    if shchur::fits(npz) {
        Ok(Format::Shchur)
    } else if masks::fits(npz) {
        Ok(Format::Masks)
    } else if bags::fits(npz) {
        Ok(Format::Bags)
    } else {
        let names: Vec<_> = npz.names().take(20).collect();
        let problem = format!(
            "no graph is known by these arrays: {}; expected `adj_*`, `attr_*` and `labels`, or \
             `edges` with features and labels",
            names.join(", ")
        );
        Err(bad(npz.path(), problem))
    }
}
