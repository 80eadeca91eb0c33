//! Rows of text files whose fields are separated by commas, tabs or blanks, and quoted if they hold
//! a separator. Every message names the file and the line.

use std::path::{Path, PathBuf};

use super::text::{Lines, float, integer, shown};
use crate::Error;

/// Upper bound on a row's length: a longer one has a quote that is never closed.
const ROW_MAX: usize = 1 << 24;

/// What stands between fields; the first row of a file decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Separator {
    Comma,
    Tab,
    /// One blank or more.
    Blanks,
}

/// How the rows of a text file are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowForm {
    /// Fields separated by commas or tabs; names may hold blanks.
    Table,
    /// Also fields separated by blanks, and lines of comments: a `#` or `%` and a blank.
    List,
}

/// Reads the rows of a text file one by one.
pub struct Records {
    path: PathBuf,
    lines: Lines,
    rows: RowForm,
    /// None before the first row.
    separator: Option<Separator>,
    row: Vec<u8>,
    /// The fields of the row without their quotes, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Records {
    pub fn open(path: &Path, rows: RowForm) -> Result<Self, Error> {
        let lines = Lines::open(path)?;
        let (row, text, ends) = (vec![], vec![], vec![]);
        Ok(Self { path: path.into(), lines, rows, separator: None, row, text, ends })
    }

    /// The next row. Blank lines are skipped; inside of quotes a row goes on over lines.
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let number = loop {
            let Some(first) = self.lines.next()? else { return Ok(None) };
            if self.rows == RowForm::Table || !is_comment(first.bytes) {
                self.row.clear();
                self.row.extend(first.bytes);
                break first.number;
            }
        };
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

    /// The line behind the last one; only after the last row was read.
    pub fn end_line(&self) -> u64 {
        self.lines.number()
    }

    /// Takes the row apart: separators inside of quotes do not count, two quotes stand for one.
    fn split(&mut self) {
        let row = self.row.trim_ascii_end();
        let separator = *self.separator.get_or_insert_with(|| match self.rows {
            _ if row.contains(&b',') => Separator::Comma,
            _ if row.contains(&b'\t') => Separator::Tab,
            RowForm::List => Separator::Blanks,
            RowForm::Table => Separator::Comma,
        });
        // Behind the last tab there may be an empty field.
        let row = if separator == Separator::Blanks { row.trim_ascii() } else { &self.row[..] };
        self.text.clear();
        self.ends.clear();
        let (mut quoted, mut bytes) = (false, row.iter().peekable());
        while let Some(byte) = bytes.next() {
            match (byte, separator) {
                (b'"', _) if quoted && bytes.next_if_eq(&&b'"').is_some() => self.text.push(b'"'),
                (b'"', _) => quoted = !quoted,
                (b',', Separator::Comma) | (b'\t', Separator::Tab) if !quoted => {
                    self.ends.push(self.text.len());
                }
                (b' ' | b'\t', Separator::Blanks) if !quoted => {
                    while bytes.next_if(|byte| matches!(byte, b' ' | b'\t')).is_some() {}
                    self.ends.push(self.text.len());
                }
                (byte, _) => self.text.push(*byte),
            }
        }
        self.ends.push(self.text.len());
    }

    /// The names of the columns, in lower case.
    pub fn header(&mut self) -> Result<Vec<String>, Error> {
        let empty = Error::Line {
            path: self.path.clone(),
            line: 1,
            problem: "the file is empty; expected the names of its columns".into(),
        };
        let record = self.next()?.ok_or(empty)?;
        Ok((0..record.len()).map(|column| shown(record.field(column)).to_lowercase()).collect())
    }
}

/// `# Nodes: 4039 Edges: 88234`; a name such as `#rust` is none.
fn is_comment(line: &[u8]) -> bool {
    matches!(line, [b'#' | b'%'] | [b'#' | b'%', b' ' | b'\t', ..])
}

/// The fields of one row, with its line for messages.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    path: &'a Path,
    pub number: u64,
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
            .map_err(|_| self.bad(format!("column {} is not UTF-8", column + 1)))
    }

    /// An integer from 0 to below `limit`; `what` says what it numbers.
    pub fn id(&self, column: usize, limit: usize, what: &str) -> Result<u32, Error> {
        let field = self.get(column)?;
        let number = integer(field.as_bytes()).and_then(|number| usize::try_from(number).ok());
        number.filter(|number| *number < limit).map(|number| number as u32).ok_or_else(|| {
            let field = shown(field.as_bytes());
            self.bad(format!("`{field}`: expected {what} from 0 to below {limit}"))
        })
    }

    /// Appends the numbers from this column on to `values` and returns how many there were.
    pub fn floats(&self, from: usize, values: &mut Vec<f32>) -> Result<usize, Error> {
        for column in from..self.len() {
            let field = self.field(column);
            let value = float(field).filter(|value| value.is_finite());
            values.push(value.ok_or_else(|| {
                let (field, column) = (shown(field), column + 1);
                self.bad(format!("column {column}: `{field}`: expected a finite number"))
            })?);
        }
        Ok(self.len() - from)
    }
}
