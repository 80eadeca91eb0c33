//! The error of all readers. It names the place, the text found there, the text expected, and the
//! remedy.

use std::fmt;

/// A file that cannot be read. Boxed strings keep a `Result` small: readers return one per field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The display name of the file.
    pub file: Box<str>,
    /// Counted from 1; none where the whole file is meant.
    pub line: Option<u64>,
    /// The column or key on that line: `column num_gpus`, `key rack.count`.
    pub place: Option<Box<str>>,
    /// The text at that place, shortened and without control characters.
    pub found: Option<Box<str>>,
    pub problem: Problem,
    /// The remedy.
    pub hint: Option<Box<str>>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// A description of valid content.
    Expected(Box<str>),
    /// A statement about the file: `has a header but no jobs`.
    States(Box<str>),
}

impl Error {
    pub(crate) fn new(file: &str, expected: impl Into<Box<str>>) -> Self {
        Self::with(file, Problem::Expected(expected.into()))
    }

    /// An error that reads as a sentence about the file.
    pub(crate) fn about(file: &str, states: impl Into<Box<str>>) -> Self {
        Self::with(file, Problem::States(states.into()))
    }

    fn with(file: &str, problem: Problem) -> Self {
        Self { file: file.into(), line: None, place: None, found: None, problem, hint: None }
    }

    pub(crate) fn at(mut self, line: u64) -> Self {
        self.line = Some(line);
        self
    }

    pub(crate) fn column(mut self, name: &str) -> Self {
        self.place = Some(format!("column {}", printable(name, 60)).into());
        self
    }

    pub(crate) fn key(mut self, name: &str) -> Self {
        self.place = Some(format!("key {}", printable(name, 60)).into());
        self
    }

    pub(crate) fn found(mut self, text: &str) -> Self {
        self.found = Some(printable(text, 60).replace('"', "\\\"").into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<Box<str>>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A TOML error, placed at the line that its span names.
    pub(crate) fn toml(file: &str, text: &str, what: &str, error: &toml::de::Error) -> Self {
        let reason = Self::new(file, format!("{what}: {}", error.message().trim_end()));
        match error.span().and_then(|span| text.get(..span.start).zip(text.get(span))) {
            Some((before, found)) => {
                let reason = reason.at(1 + before.matches('\n').count() as u64);
                // A span over several lines says less than its line number does.
                if found.is_empty() || found.contains('\n') { reason } else { reason.found(found) }
            }
            None => reason,
        }
    }

    /// A JSON error, placed at its line.
    pub(crate) fn json(file: &str, what: &str, error: &serde_json::Error) -> Self {
        let reason = Self::new(file, format!("{what}: {error}"));
        match error.line() as u64 {
            0 => reason,
            line => reason.at(line),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file, 500))?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(place) = &self.place {
            write!(f, ": {place}")?;
        }
        // Messages of the TOML and JSON parsers may quote the file.
        match (&self.problem, &self.found) {
            (Problem::Expected(what), Some(found)) => {
                write!(f, ": found \"{found}\", expected {}", printable(what, 1000))?;
            }
            (Problem::Expected(what), None) => write!(f, ": expected {}", printable(what, 1000))?,
            (Problem::States(what), _) => {
                let whole = self.line.is_none() && self.place.is_none();
                let separator = if whole { " " } else { ": " };
                write!(f, "{separator}{}", printable(what, 1000))?;
            }
        }
        match &self.hint {
            Some(hint) => write!(f, "; {}", printable(hint, 500)),
            None => Ok(()),
        }
    }
}

/// At most so many characters, control characters escaped: any bytes may end up here.
fn printable(text: &str, limit: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(limit) {
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    if text.chars().nth(limit).is_some() {
        shown.push('…');
    }
    shown
}
