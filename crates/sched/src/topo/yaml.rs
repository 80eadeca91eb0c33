//! Slurm's `topology.yaml`, and the little of YAML that it uses: lists and maps by indentation, plain
//! and quoted words, lists of words in brackets.

use super::slurm::{Place, Slurm};
use crate::read::Error;
use crate::read::table::Source;

/// Deeper nesting than any such file has; a bound for the parser's recursion.
const DEPTH_MAX: usize = 16;

/// Whether the text is a `topology.yaml`: by its name, or as a list of maps that begin with `topology`.
pub(super) fn is_yaml(source: Source<'_>) -> bool {
    if source.file.ends_with(".yaml") || source.file.ends_with(".yml") {
        return true;
    }
    let text = source.lines().map(|(_, line)| without_comment(line).trim());
    let mut content = text.filter(|line| !line.is_empty() && *line != "---");
    content.next().is_some_and(|line| {
        let first = line.strip_prefix('-').unwrap_or(line).trim_start();
        line.starts_with('-') && (first.is_empty() || first.starts_with("topology:"))
    })
}

/// Adds the default topology of the file: the one marked so, else the first.
pub(super) fn read<'a>(source: Source<'a>, slurm: &mut Slurm<'a>) -> Result<(), Error> {
    let mut parser = Parser { source, lines: lines(source)?, at: 0 };
    let root = parser.node(0, 0)?;
    if let Some(line) = parser.lines.get(parser.at) {
        return Err(source.error("a line indented like those before").at(line.number));
    }
    let topologies = root.list(source, "a list of topologies")?;
    let mut chosen = None;
    let mut names = Vec::new();
    for topology in topologies {
        names.push(topology.word(source, "topology")?);
        let is_default = topology.get("cluster_default").is_some_and(|node| node.is_word("true"));
        if is_default && chosen.is_none() {
            chosen = Some(names.len() - 1);
        }
    }
    let index = chosen.unwrap_or(0);
    let Some(topology) = topologies.get(index) else {
        return Err(source.error("at least one topology"));
    };
    if names.len() > 1 {
        let others: Vec<&str> =
            names.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, n)| *n).collect();
        slurm.notes.push(format!(
            "{} has {} topologies: {} is used, {} not",
            source.file,
            names.len(),
            names[index],
            others.join(", ")
        ));
    }
    add(source, topology, slurm)
}

fn add<'a>(source: Source<'a>, topology: &Node<'a>, slurm: &mut Slurm<'a>) -> Result<(), Error> {
    if let Some(tree) = topology.get("tree") {
        let switches = tree.require(source, "switches")?;
        for switch in switches.list(source, "a list of switches")? {
            let place = Place { source, line: switch.line };
            let name = switch.word(source, "switch")?;
            slurm.switch(place, name, switch.text("nodes"), switch.text("children"))?;
        }
    } else if let Some(block) = topology.get("block") {
        if let Some(sizes) = block.get("block_sizes") {
            let words = sizes.list(source, "a list of sizes")?.iter().map(Node::as_text);
            slurm.block_sizes = words.collect();
        }
        let blocks = block.require(source, "blocks")?;
        for block in blocks.list(source, "a list of blocks")? {
            let place = Place { source, line: block.line };
            let name = block.word(source, "block")?;
            slurm.block(place, name, block.text("nodes"))?;
        }
    } else if !topology.get("flat").is_some_and(|node| node.is_word("true")) {
        return Err(source.error("one of tree, block and flat").at(topology.line).key("topology"));
    }
    Ok(())
}

struct Line<'a> {
    number: u64,
    indent: usize,
    text: &'a str,
}

struct Node<'a> {
    line: u64,
    value: Value<'a>,
}

enum Value<'a> {
    Word(&'a str),
    List(Vec<Node<'a>>),
    Map(Vec<(&'a str, Node<'a>)>),
}

impl<'a> Node<'a> {
    fn get(&self, key: &str) -> Option<&Node<'a>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(k, _)| *k == key).map(|(_, node)| node),
            _ => None,
        }
    }

    fn require(&self, source: Source<'_>, key: &str) -> Result<&Node<'a>, Error> {
        self.get(key).ok_or_else(|| source.error(format!("a key {key}")).at(self.line))
    }

    fn list(&self, source: Source<'_>, what: &str) -> Result<&[Node<'a>], Error> {
        match &self.value {
            Value::List(nodes) => Ok(nodes),
            _ => Err(source.error(what).at(self.line)),
        }
    }

    /// The value of a key that must be there, as a word.
    fn word(&self, source: Source<'_>, key: &str) -> Result<&'a str, Error> {
        match self.require(source, key)?.value {
            Value::Word(word) if !word.is_empty() => Ok(word),
            _ => Err(source.error("a name").at(self.line).key(key)),
        }
    }

    /// The value of a key that may be absent, with the items of a list separated by commas.
    fn text(&self, key: &str) -> Option<String> {
        self.get(key).map(Node::as_text)
    }

    fn as_text(&self) -> String {
        match &self.value {
            Value::Word(word) => (*word).to_owned(),
            Value::List(nodes) => nodes.iter().map(Node::as_text).collect::<Vec<_>>().join(","),
            Value::Map(_) => String::new(),
        }
    }

    fn is_word(&self, wanted: &str) -> bool {
        matches!(self.value, Value::Word(word) if word.eq_ignore_ascii_case(wanted))
    }
}

/// A `#` begins a comment at the start of a word; quotes protect it.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        before = c;
    }
    line
}

fn lines(source: Source<'_>) -> Result<Vec<Line<'_>>, Error> {
    let mut lines = Vec::new();
    for (number, line) in source.lines() {
        let content = without_comment(line).trim_end();
        let text = content.trim_start();
        if text.is_empty() || text == "---" {
            continue;
        }
        let blank = &content[..content.len() - text.len()];
        if blank.contains(|c| c != ' ') {
            return Err(source.error("blanks, not tabs, before the first word").at(number));
        }
        lines.push(Line { number, indent: blank.len(), text });
    }
    Ok(lines)
}

struct Parser<'a> {
    source: Source<'a>,
    lines: Vec<Line<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    /// The node that begins at the current line, with at least this indentation.
    fn node(&mut self, indent_min: usize, depth: usize) -> Result<Node<'a>, Error> {
        let Some(&Line { number, indent, text }) = self.lines.get(self.at) else {
            return Ok(Node { line: 1, value: Value::Word("") });
        };
        if depth > DEPTH_MAX {
            return Err(self.source.error("less nesting").at(number));
        }
        if indent < indent_min {
            return Ok(Node { line: number, value: Value::Word("") });
        }
        if text == "-" || text.starts_with("- ") {
            self.list(number, indent, depth)
        } else if key_and_rest(text).is_some() {
            self.map(number, indent, depth)
        } else {
            self.at += 1;
            self.scalar(number, text)
        }
    }

    fn list(&mut self, line: u64, indent: usize, depth: usize) -> Result<Node<'a>, Error> {
        let mut items = Vec::new();
        while let Some(&Line { number, indent: own, text }) = self.lines.get(self.at) {
            if own != indent || !(text == "-" || text.starts_with("- ")) {
                break;
            }
            let rest = text[1..].trim_start();
            if rest.is_empty() {
                self.at += 1;
            } else {
                // The text after the dash is a node of its own, indented to its first letter.
                let indent = indent + text.len() - rest.len();
                self.lines[self.at] = Line { number, indent, text: rest };
            }
            items.push(self.node(indent + 1, depth + 1)?);
        }
        Ok(Node { line, value: Value::List(items) })
    }

    fn map(&mut self, line: u64, indent: usize, depth: usize) -> Result<Node<'a>, Error> {
        let mut entries: Vec<(&str, Node<'a>)> = Vec::new();
        while let Some(&Line { number, indent: own, text }) = self.lines.get(self.at) {
            let Some((key, rest)) = key_and_rest(text).filter(|_| own == indent) else { break };
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(self.source.error("each key once").at(number).found(key));
            }
            self.at += 1;
            let node = if rest.is_empty() {
                // A list may stand at its key's own indentation.
                let is_list =
                    self.lines.get(self.at).is_some_and(|next| next.text.starts_with('-'));
                self.node(if is_list { indent } else { indent + 1 }, depth + 1)?
            } else {
                self.scalar(number, rest)?
            };
            entries.push((key, node));
        }
        Ok(Node { line, value: Value::Map(entries) })
    }

    fn scalar(&self, line: u64, text: &'a str) -> Result<Node<'a>, Error> {
        if text.starts_with(['{', '&', '*', '|', '>', '!', '%', '@', '`']) {
            return Err(self
                .source
                .error("plain words, and lists and maps by indentation")
                .at(line)
                .found(text));
        }
        let value = match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(items) => Value::List(
                items
                    .split(',')
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(|item| Node { line, value: Value::Word(unquoted(item)) })
                    .collect(),
            ),
            None => Value::Word(unquoted(text)),
        };
        Ok(Node { line, value })
    }
}

/// `key: rest` or `key:`.
fn key_and_rest(text: &str) -> Option<(&str, &str)> {
    let (key, rest) = text.split_once(':')?;
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-".contains(c));
    (is_key && (rest.is_empty() || rest.starts_with(' '))).then(|| (key, rest.trim()))
}

fn unquoted(text: &str) -> &str {
    let between = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    between('"').or_else(|| between('\'')).unwrap_or(text)
}
