//! Lines of text files, gzipped or not. Every message names the file and the line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use hither_data::{Array, Spill};

use super::bad;
use crate::Error;

/// Upper bound on a line's length: even 100,000 features take less.
const LINE_MAX: u64 = 16 << 20;

/// `folder/name` or, if that is not there, `folder/name.gz`.
pub fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let plain = folder.join(name);
    let packed = folder.join(format!("{name}.gz"));
    [plain, packed].into_iter().find(|path| path.is_file())
}

/// As [`find`], but an error if there is none.
pub fn need(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    find(folder, name).ok_or_else(|| bad(folder, format!("{name} (or {name}.gz) is missing")))
}

/// The table of this name, such as `edges.csv`, `.tsv` or `.txt`, gzipped or not.
pub fn find_table(folder: &Path, name: &str) -> Option<PathBuf> {
    ["csv", "tsv", "txt"].iter().find_map(|ending| find(folder, &format!("{name}.{ending}")))
}

/// A reader of the file's text, whether it is gzipped or not.
pub fn reader(path: &Path) -> Result<Box<dyn BufRead>, Error> {
    let io = |source| Error::Io { action: "open", path: path.into(), source };
    let mut file = BufReader::with_capacity(1 << 18, File::open(path).map_err(io)?);
    let packed = file.fill_buf().map_err(io)?.starts_with(b"\x1f\x8b");
    if packed {
        return Ok(Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}

/// Reads the lines of a text file one by one.
pub struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    number: u64,
    line: Vec<u8>,
}

impl Lines {
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { path: path.into(), reader: reader(path)?, number: 0, line: vec![] })
    }

    /// Number of the line that was read last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank, without its end.
    pub fn next(&mut self) -> Result<Option<Line<'_>>, Error> {
        loop {
            self.line.clear();
            self.number += 1;
            let read = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line);
            let path = || self.path.clone();
            let read = read.map_err(|source| Error::Io { action: "read", path: path(), source })?;
            if read as u64 == LINE_MAX {
                let problem = format!("a line of more than {LINE_MAX} bytes");
                return Err(Error::Line { path: path(), line: self.number, problem });
            }
            if read == 0 {
                return Ok(None);
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        // Tabs stay: they may stand for empty fields.
        let bytes = trim(&self.line, |byte| matches!(byte, b' ' | b'\r' | b'\n'));
        Ok(Some(Line { path: &self.path, number: self.number, bytes }))
    }
}

fn trim(mut bytes: &[u8], is_blank: impl Fn(u8) -> bool) -> &[u8] {
    while let [first, rest @ ..] = bytes
        && is_blank(*first)
    {
        bytes = rest;
    }
    while let [rest @ .., last] = bytes
        && is_blank(*last)
    {
        bytes = rest;
    }
    bytes
}

/// One line, with its number for messages.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    pub path: &'a Path,
    pub number: u64,
    pub bytes: &'a [u8],
}

impl<'a> Line<'a> {
    pub fn bad(&self, problem: impl Into<String>) -> Error {
        Error::Line { path: self.path.into(), line: self.number, problem: problem.into() }
    }

    /// Fields between commas.
    pub fn fields(&self) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.bytes.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
    }

    /// An integer from 0 to below `limit`; `what` says what it numbers.
    pub fn id(&self, field: &[u8], limit: usize, what: &str) -> Result<u32, Error> {
        let number = integer(field.trim_ascii()).and_then(|number| usize::try_from(number).ok());
        number.filter(|number| *number < limit).map(|number| number as u32).ok_or_else(|| {
            self.bad(format!("`{}`: expected {what} from 0 to below {limit}", shown(field)))
        })
    }

    /// A pair of nodes and nothing else.
    pub fn pair(&self, nodes: usize) -> Result<(u32, u32), Error> {
        let mut fields = self.fields();
        let (Some(u), Some(v), None) = (fields.next(), fields.next(), fields.next()) else {
            let line = shown(self.bytes);
            return Err(self.bad(format!("`{line}`: expected two nodes separated by a comma")));
        };
        Ok((self.id(u, nodes, "a node")?, self.id(v, nodes, "a node")?))
    }

    /// Appends the row's numbers to `values` and returns how many there were.
    pub fn floats<'f>(
        &self,
        fields: impl Iterator<Item = &'f [u8]>,
        values: &mut Vec<f32>,
    ) -> Result<usize, Error> {
        let before = values.len();
        for (column, field) in (1..).zip(fields) {
            let value = float(field).filter(|value| value.is_finite());
            values.push(value.ok_or_else(|| {
                let field = shown(field);
                self.bad(format!("column {column}: `{field}`: expected a finite number"))
            })?);
        }
        Ok(values.len() - before)
    }
}

pub fn integer(field: &[u8]) -> Option<i64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

pub fn float(field: &[u8]) -> Option<f32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The start of a field, short enough for a message.
pub fn shown(field: &[u8]) -> String {
    String::from_utf8_lossy(field).chars().take(40).collect()
}

/// Reads `rows` rows of numbers, all of one length. Returns the values and the columns. A long table
/// does not stay in memory.
pub fn table(path: &Path, rows: usize) -> Result<(Array<f32>, usize), Error> {
    let mut lines = Lines::open(path)?;
    let (mut values, mut row) = (Spill::default(), vec![]);
    let (mut columns, mut found) = (0, 0);
    while let Some(line) = lines.next()? {
        if found == rows {
            return Err(line.bad(format!("expected {rows} rows, one per node; there are more")));
        }
        row.clear();
        let len = line.floats(line.fields(), &mut row)?;
        if found > 0 && len != columns {
            return Err(line.bad(format!("{len} columns; expected {columns} as before")));
        }
        values.extend(&row)?;
        columns = len;
        found += 1;
    }
    if found != rows {
        return Err(bad(path, format!("it has {found} rows; expected {rows}, one per node")));
    }
    Ok((values.finish()?, columns))
}
