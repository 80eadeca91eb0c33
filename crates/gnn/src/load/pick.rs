//! Recognises the layout of a path by what is there.

use std::collections::BTreeSet;
use std::path::Path;

use hither_data::{Bytes, Checkpoint, Npz, npz};

use super::{
    Format, bad, bags, interactions, mapped, masks, musae, ogb, planetoid, pyg, saint, shchur, text,
};
use crate::Error;
use crate::parts::stored;

/// Endings of lists of edges; other files are taken for one if their first line looks like it.
const LISTS: [&str; 5] = [".csv", ".tsv", ".txt", ".edges", ".edgelist"];
/// Bytes that are looked at to tell text from other files.
const SNIFFED: usize = 4096;

pub fn format(path: &Path) -> Result<Format, Error> {
    if path.is_dir() {
        return folder(path);
    }
    let bytes = Bytes::map(path)?;
    let name = path.to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    if bytes.starts_with(npz::MAGIC) {
        let npz = Npz::open(path)?;
        if npz.names().next().is_some() {
            return archive(&npz);
        }
        // Not numpy.savez; torch.save writes archives too.
        return tensors(&Checkpoint::open(path)?);
    }
    if LISTS.iter().any(|ending| name.ends_with(ending)) || is_text(&bytes) {
        let is_table = interactions::is_table(path);
        return Ok(if is_table { Format::Interactions } else { Format::Csv });
    }
    match name.rsplit('.').next() {
        Some("safetensors" | "pt" | "pth") => tensors(&Checkpoint::open(path)?),
        Some("npz") => Err(bad(path, "it is not an npz archive; was it cut off, or renamed?")),
        _ => match Checkpoint::open(path) {
            Ok(file) => tensors(&file),
            Err(hither_data::Error::Safetensors { .. }) => {
                Err(bad(path, format!("it is not a graph file that is known; {KNOWN}")))
            }
            Err(hither_data::Error::WrongKind { kind, .. }) => {
                Err(bad(path, format!("it is {kind}, not a graph; {KNOWN}")))
            }
            Err(error) => Err(error.into()),
        },
    }
}

const KNOWN: &str = "expected a .graph.safetensors file, an .npz archive, a data.pt of PyTorch \
                     Geometric, a text file with two nodes per line, or a folder";

/// Whether a file is text whose first line is two fields or more.
fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(SNIFFED)];
    let is_printable = |byte: &u8| !byte.is_ascii_control() || byte.is_ascii_whitespace();
    let is_comment = |line: &&[u8]| line.starts_with(b"#") || line.starts_with(b"%");
    let line = start.split(|byte| *byte == b'\n').find(|line| !is_comment(line));
    let separators = line.unwrap_or_default().trim_ascii().iter();
    start.iter().all(is_printable)
        && separators.filter(|byte| matches!(byte, b' ' | b'\t' | b',')).count() > 0
}

fn folder(path: &Path) -> Result<Format, Error> {
    if stored::fits(path) {
        Ok(Format::Partitioned)
    } else if ogb::fits(path) {
        Ok(Format::Ogb)
    } else if planetoid::find(path).is_some() {
        Ok(Format::Planetoid)
    } else if path.join(saint::ADJACENCY).is_file() {
        Ok(Format::GraphSaint)
    } else if musae::find(path).is_some() {
        Ok(Format::Musae)
    } else if text::find_table(path, "edges").is_some() {
        Ok(Format::Csv)
    } else if interactions::fits(path) {
        Ok(Format::Interactions)
    } else if pyg::find(path).is_some() {
        Ok(Format::Pyg)
    } else {
        Err(bad(
            path,
            "no graph is found in this folder; expected one of raw/edge.csv.gz (OGB), \
             ind.<name>.graph (Planetoid), adj_full.npz (GraphSAINT), features.json with edges.csv \
             and target.csv (MUSAE), edges.csv, train.txt with test.txt or interactions.csv (users and items), or \
             processed/data.pt (PyTorch Geometric)",
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
    } else if pyg::fits(npz.names()) {
        Ok(Format::Pyg)
    } else {
        let names: Vec<_> = npz.names().take(20).collect();
        let names = names.join(", ");
        Err(bad(npz.path(), format!("it holds the arrays {names}; {EXPECTED}")))
    }
}

const EXPECTED: &str = "expected `edge_index`, `x` and `y`, or `adj_*`, `attr_*` and `labels`, or \
                        `edges` with features and labels";

fn tensors(file: &Checkpoint) -> Result<Format, Error> {
    if mapped::fits(&file.metadata) {
        return Ok(Format::Mapped);
    }
    if pyg::fits(file.tensors.keys().map(String::as_str)) {
        return Ok(Format::Pyg);
    }
    // A model has many weights and biases: each name once.
    let last = |name: &'_ String| name.rsplit('.').next().unwrap_or(name).to_owned();
    let names: BTreeSet<String> = file.tensors.keys().map(last).collect();
    let names: Vec<String> = names.into_iter().take(20).collect();
    let names = if names.is_empty() { "no tensors".into() } else { names.join(", ") };
    Err(bad(&file.path, format!("it holds {names}; {EXPECTED}")))
}
