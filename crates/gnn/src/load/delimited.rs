//! Tables of text with commas, and quotes where a field has some, with the line in every message.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::text::{Lines, integer, shown};
use crate::dataset::UNLABELLED;
use crate::{Error, Labels};

/// A row that is longer has a quote that nobody closed.
const ROW_MAX: usize = 1 << 24;

pub struct Records {
    path: PathBuf,
    lines: Lines,
    row: Vec<u8>,
    /// The fields of the row without their quotes, one behind the other, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let lines = Lines::open(path)?;
        Ok(Self { path: path.into(), lines, row: vec![], text: vec![], ends: vec![] })
    }

    /// The next row; blank lines are none, and inside of quotes a row goes on over lines.
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some(first) = self.lines.next()? else { return Ok(None) };
        let number = first.number;
        self.row.clear();
        self.row.extend(first.bytes);
        while !self.row.iter().filter(|byte| **byte == b'"').count().is_multiple_of(2) {
            let more = if self.row.len() < ROW_MAX { self.lines.next()? } else { None };
            let Some(more) = more else {
                let problem = "a quote is opened here and never closed".into();
                return Err(Error::Line { path: self.path.clone(), line: number, problem });
            };
            self.row.push(b'\n');
            self.row.extend(more.bytes);
        }
        self.split();
        Ok(Some(Record { path: &self.path, number, text: &self.text, ends: &self.ends }))
    }

    /// Takes the row apart: commas inside of quotes part nothing, two quotes stand for one.
    fn split(&mut self) {
        self.text.clear();
        self.ends.clear();
        let (mut quoted, mut bytes) = (false, self.row.iter().peekable());
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' if quoted && bytes.next_if_eq(&&b'"').is_some() => self.text.push(b'"'),
                b'"' => quoted = !quoted,
                b',' if !quoted => self.ends.push(self.text.len()),
                byte => self.text.push(*byte),
            }
        }
        self.ends.push(self.text.len());
    }

    /// The names of the columns, in lower case.
    pub fn header(&mut self) -> Result<Vec<String>, Error> {
        let empty = Error::Line {
            path: self.path.clone(),
            line: 1,
            problem: "it is empty; expected the names of its columns".into(),
        };
        let record = self.next()?.ok_or(empty)?;
        Ok((0..record.len()).map(|column| shown(record.field(column)).to_lowercase()).collect())
    }
}

#[derive(Clone, Copy)]
pub struct Record<'a> {
    path: &'a Path,
    number: u64,
    text: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Record<'a> {
    pub fn bad(&self, problem: impl Into<String>) -> Error {
        Error::Line { path: self.path.into(), line: self.number, problem: problem.into() }
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    fn field(&self, column: usize) -> &'a [u8] {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        self.text[start..self.ends[column]].trim_ascii()
    }

    pub fn get(&self, column: usize) -> Result<&'a str, Error> {
        if column >= self.len() {
            let (found, column) = (self.len(), column + 1);
            return Err(self.bad(format!("{found} columns; expected at least {column}")));
        }
        std::str::from_utf8(self.field(column))
            .map_err(|_| self.bad(format!("column {} is no UTF-8", column + 1)))
    }

    /// A number from 0 to below `limit`, which counts `what`.
    pub fn id(&self, column: usize, limit: usize, what: &str) -> Result<u32, Error> {
        let field = self.get(column)?;
        let number = integer(field.as_bytes()).and_then(|number| usize::try_from(number).ok());
        number.filter(|number| *number < limit).map(|number| number as u32).ok_or_else(|| {
            let field = shown(field.as_bytes());
            self.bad(format!("`{field}`: expected {what} from 0 to below {limit}"))
        })
    }
}

/// Classes in the order of their names, by value where all are integers; the empty name stands
/// for none.
pub fn classes_by_name(of: &[String]) -> Labels {
    let all_integers = of.iter().all(|name| name.is_empty() || integer(name.as_bytes()).is_some());
    let key = |name: &str| {
        let value = if all_integers { integer(name.as_bytes()).unwrap_or(0) } else { 0 };
        (value, name.to_string())
    };
    let named = of.iter().filter(|name| !name.is_empty());
    let mut numbers: BTreeMap<(i64, String), u32> = named.map(|name| (key(name), 0)).collect();
    for (number, (_, value)) in numbers.iter_mut().enumerate() {
        *value = number as u32;
    }
    let class = |name: &String| numbers.get(&key(name)).copied().unwrap_or(UNLABELLED);
    let of: Vec<u32> = of.iter().map(class).collect();
    Labels::Classes { of: of.into(), count: numbers.len() }
}
