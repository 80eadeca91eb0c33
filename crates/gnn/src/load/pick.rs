//! Which layout a path is in, by what is there.

use std::path::Path;

use hither_data::{Bytes, Checkpoint, Npz, npz};

use super::{Format, bad, bags, mapped, masks, musae, ogb, planetoid, saint, shchur, text};
use crate::Error;

pub fn format(path: &Path) -> Result<Format, Error> {
    if path.is_dir() {
        return folder(path);
    }
    let bytes = Bytes::map(path)?;
    if bytes.starts_with(npz::MAGIC) {
        return archive(&Npz::open(path)?);
    }
    if [".csv", ".csv.gz"].iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
        return Ok(Format::Csv);
    }
    if mapped::fits(&Checkpoint::open(path)?.metadata) {
        return Ok(Format::Mapped);
    }
    Err(bad(path, "it holds tensors, but no graph of ours: its metadata do not say so"))
}

fn folder(path: &Path) -> Result<Format, Error> {
    if ogb::fits(path) {
        Ok(Format::Ogb)
    } else if planetoid::find(path).is_some() {
        Ok(Format::Planetoid)
    } else if path.join(saint::ADJACENCY).is_file() {
        Ok(Format::GraphSaint)
    } else if musae::find(path).is_some() {
        Ok(Format::Musae)
    } else if text::find(path, "edges.csv").is_some() {
        Ok(Format::Csv)
    } else {
        Err(bad(
            path,
            "no graph is known in this folder; expected one of raw/edge.csv.gz (OGB), \
             ind.<name>.graph (Planetoid), adj_full.npz (GraphSAINT), features.json with edges.csv \
             and target.csv (MUSAE), or edges.csv",
        ))
    }
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
