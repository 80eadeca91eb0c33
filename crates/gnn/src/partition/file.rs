//! Partition files: one part number per line, in the order of the nodes, as `gpmetis` writes them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use hither_data::Output;

use super::{PARTS_MAX, Partition};
use crate::Error;

/// Upper bound on a line: a part number and blanks around it.
const LINE_BYTES_MAX: u64 = 64;

/// Writes the file in one step.
pub fn write(path: impl AsRef<Path>, partition: &Partition) -> Result<(), Error> {
    let path = path.as_ref();
    let mut out = Output::create(path)?;
    for part in &partition.of {
        writeln!(out, "{part}").map_err(|source| Error::Io {
            action: "write",
            path: path.into(),
            source,
        })?;
    }
    Ok(out.commit()?)
}

/// Reads the partition of a graph with `nodes` nodes. Parts are numbered from 0 without gaps.
pub fn read(path: impl AsRef<Path>, nodes: usize) -> Result<Partition, Error> {
    let path = path.as_ref();
    let io = |action| move |source| Error::Io { action, path: path.into(), source };
    let wrong = |problem: String| Error::File { path: path.into(), problem };
    let mut input = BufReader::with_capacity(1 << 18, File::open(path).map_err(io("open"))?);
    let (mut of, mut line, mut text) = (vec![], 0, vec![]);
    loop {
        text.clear();
        line += 1;
        let got = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
        if got.map_err(io("read"))? == 0 {
            break;
        }
        let trimmed = text.trim_ascii();
        if trimmed.is_empty() {
            continue;
        }
        let bad = |problem: String| Error::Line { path: path.into(), line, problem };
        if of.len() == nodes {
            return Err(bad(format!("more lines than the {nodes} nodes of the graph")));
        }
        let text = String::from_utf8_lossy(trimmed);
        let part: u32 =
            text.parse().map_err(|_| bad(format!("`{text}`: expected a part number")))?;
        if part as usize >= PARTS_MAX.min(nodes) {
            let most = PARTS_MAX.min(nodes);
            return Err(bad(format!("part {part} is not below {most}; parts are numbered from 0")));
        }
        of.push(part);
    }
    if of.len() != nodes {
        let found = of.len();
        return Err(wrong(format!("it has {found} lines; expected {nodes}, one per node")));
    }
    let parts = of.iter().max().map_or(0, |last| *last as usize + 1);
    let mut seen = vec![false; parts];
    for part in &of {
        seen[*part as usize] = true;
    }
    match seen.iter().position(|seen| !seen) {
        Some(part) => Err(wrong(format!(
            "part {part} is empty, but part {} is not; number parts without gaps",
            parts - 1
        ))),
        None => Ok(Partition { of, parts }),
    }
}
