//! Reads pickles as data. Nothing is ever imported, called or built: a call that a pickle asks of
//! Python is kept as a description ([`Node::Call`]) for the reader to understand, and a name that
//! the reader does not know is refused where it appears.

pub mod numpy;

use std::collections::HashMap;

/// Why a pickle was refused, and where.
#[derive(Debug, thiserror::Error)]
#[error("pickle, byte {at}: {problem}")]
pub struct Error {
    pub at: usize,
    pub problem: Problem,
}

/// Why a pickle was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("it ends too early; was the file cut off?")]
    Truncated,
    #[error("opcode {0:#04x} is not one of those that tensors need; it was not run")]
    Opcode(u8),
    #[error(
        "`{module}.{name}` is refused: only plain tensors are read, and no code is run; {remedy}"
    )]
    Global { module: String, name: String, remedy: &'static str },
    #[error("protocol {0} is unknown")]
    Protocol(u8),
    #[error("it takes a value from an empty stack; is the file damaged?")]
    StackEmpty,
    #[error("it refers to memo {0}, which it never stored; is the file damaged?")]
    MemoMissing(u32),
    #[error("it uses {0}; is the file damaged?")]
    WrongType(&'static str),
    #[error("text is not UTF-8")]
    Text,
    #[error("an integer of {0} bytes is too large")]
    Integer(usize),
    #[error("more than {0} values; save only the tensors")]
    TooMany(usize),
    #[error("{0} bytes follow its end")]
    Trailing(usize),
}

/// Upper bound; only checkpoints that consist of Python lists have more values.
const VALUES_MAX: usize = 1 << 22;

/// A value of a pickle: a plain one, or a reference to a [`Node`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    /// A name that the caller allows, by its module.
    Global(&'a str, &'a str),
    /// A list, a dictionary or another value that can be referred to.
    Node(NodeId),
}

/// Refers to a [`Node`] of the same pickle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(usize);

/// A value of a pickle that others can refer to.
#[derive(Clone, Debug, PartialEq)]
pub enum Node<'a> {
    List(Vec<Value<'a>>),
    Tuple(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    /// A call that Python would have made, its arguments, and the state given to the result.
    /// The arguments are a tuple, by reference: many calls may share one.
    Call {
        callee: (&'a str, &'a str),
        arguments: NodeId,
        state: Option<Value<'a>>,
    },
    /// An id that only the writer of the pickle can resolve.
    Persistent(Value<'a>),
}

/// The content of a pickle. Values may be shared and even contain themselves: walk with a limit.
#[derive(Debug)]
pub struct Pickle<'a> {
    pub root: Value<'a>,
    nodes: Vec<Node<'a>>,
}

/// A [`Node::Call`] with its arguments looked up.
#[derive(Clone, Copy, Debug)]
pub struct Call<'p, 'a> {
    /// Module and name.
    pub callee: (&'a str, &'a str),
    pub arguments: &'p [Value<'a>],
    pub state: Option<Value<'a>>,
}

/// Answers whether a name of a module is understood; if not, with advice.
pub type Allow = fn(module: &str, name: &str) -> Result<(), &'static str>;

impl<'a> Pickle<'a> {
    /// Reads bytes that are one pickle and nothing else.
    pub fn read(bytes: &'a [u8], allow: Allow) -> Result<Self, Error> {
        let (pickle, len) = Self::read_first(bytes, allow)?;
        match bytes.len() - len {
            0 => Ok(pickle),
            rest => Err(Error { at: len - 1, problem: Problem::Trailing(rest) }),
        }
    }

    /// Reads the pickle at the beginning of `bytes`, and returns its length too.
    pub fn read_first(bytes: &'a [u8], allow: Allow) -> Result<(Self, usize), Error> {
        let mut machine = Machine {
            bytes,
            at: 0,
            allow,
            stack: vec![],
            marks: vec![],
            memo: HashMap::new(),
            nodes: vec![],
            held: 0,
        };
        loop {
            let at = machine.at;
            match machine.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok((Self { root, nodes: machine.nodes }, machine.at)),
                Err(problem) => return Err(Error { at, problem }),
            }
        }
    }

    pub fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id.0]
    }

    /// The members of a list or tuple.
    pub fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::Node(id) => match self.node(id) {
                Node::List(items) | Node::Tuple(items) => Some(items),
                _ => None,
            },
            _ => None,
        }
    }

    /// All nodes, in the order in which the pickle makes them.
    pub fn nodes(&self) -> impl Iterator<Item = &Node<'a>> {
        self.nodes.iter()
    }

    /// The call that a value describes.
    pub fn call(&self, value: Value<'a>) -> Option<Call<'_, 'a>> {
        let Value::Node(id) = value else { return None };
        match self.node(id) {
            Node::Call { callee, arguments, state } => {
                let arguments = self.items(Value::Node(*arguments))?;
                Some(Call { callee: *callee, arguments, state: *state })
            }
            _ => None,
        }
    }

    /// The pairs of a dictionary.
    pub fn pairs(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        match value {
            Value::Node(id) => match self.node(id) {
                Node::Dict(pairs) => Some(pairs),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value of a dictionary under a key.
    pub fn field(&self, dictionary: Value<'a>, key: &str) -> Option<Value<'a>> {
        let pairs = self.pairs(dictionary)?;
        pairs.iter().find_map(|(k, value)| (*k == Value::Str(key)).then_some(*value))
    }

    /// A tuple or list of sizes, also as `torch.Size`.
    pub fn sizes(&self, value: Value<'a>) -> Option<Vec<usize>> {
        let value = match self.call(value) {
            Some(Call { callee: ("torch", "Size"), arguments: [sizes], .. }) => *sizes,
            _ => value,
        };
        let size = |item: &Value<'a>| match item {
            Value::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        };
        self.items(value)?.iter().map(size).collect()
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    allow: Allow,
    stack: Vec<Value<'a>>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    nodes: Vec<Node<'a>>,
    /// Values inside of nodes.
    held: usize,
}

type Step<T> = Result<T, Problem>;

impl<'a> Machine<'a> {
    /// Runs one opcode; the last one gives the result.
    fn step(&mut self) -> Step<Option<Value<'a>>> {
        let [opcode] = self.take_array()?;
        match opcode {
            0x80 => match self.take_array()? {
                [0..=5] => {}
                [version] => return Err(Problem::Protocol(version)),
            },
            0x95 => drop(self.take_array::<8>()?), // FRAME
            b'.' => return self.pop().map(Some),
            b'(' => self.mark()?,
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = self.top()?;
                self.push(top)?;
            }
            b'c' | 0x93 => self.global(opcode)?,
            b'R' | 0x81 | b'b' | b'Q' => self.describe(opcode)?,
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(opcode)?,
            b']' | b'l' | b'a' | b'e' | b'}' | b'd' | b's' | b'u' => self.container(opcode)?,
            b')' | b't' | 0x85..=0x87 => self.tuple(opcode)?,
            _ => {
                let value = self.literal(opcode)?;
                self.push(value)?;
            }
        }
        Ok(None)
    }

    fn literal(&mut self, opcode: u8) -> Step<Value<'a>> {
        Ok(match opcode {
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'J' => Value::Int(i32::from_le_bytes(self.take_array()?).into()),
            b'K' => Value::Int(u8::from_le_bytes(self.take_array()?).into()),
            b'M' => Value::Int(u16::from_le_bytes(self.take_array()?).into()),
            0x8a => {
                let [len] = self.take_array()?;
                Value::Int(long(self.take(len.into())?)?)
            }
            b'G' => Value::Float(f64::from_be_bytes(self.take_array()?)),
            0x8c => Value::Str(self.text::<1>()?),
            b'X' => Value::Str(self.text::<4>()?),
            0x8d => Value::Str(self.text::<8>()?),
            // What Python 2 calls a string is bytes that are mostly text.
            b'U' => text_or_bytes(self.counted::<1>()?),
            b'T' => text_or_bytes(self.counted::<4>()?),
            b'C' => Value::Bytes(self.counted::<1>()?),
            b'B' => Value::Bytes(self.counted::<4>()?),
            0x8e | 0x96 => Value::Bytes(self.counted::<8>()?),
            _ => return Err(Problem::Opcode(opcode)),
        })
    }

    fn container(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            b']' => self.push_node(Node::List(vec![])),
            b'}' => self.push_node(Node::Dict(vec![])),
            b'l' => {
                let items = self.pop_mark()?;
                self.push_node(Node::List(items))
            }
            b'd' => {
                let pairs = pairs(&self.pop_mark()?)?;
                self.push_node(Node::Dict(pairs))
            }
            b'a' | b'e' => {
                let items = if opcode == b'a' { vec![self.pop()?] } else { self.pop_mark()? };
                self.hold(items.len())?;
                match self.top_node()? {
                    Node::List(list) => list.extend(items),
                    _ => return Err(Problem::WrongType("a value other than a list as a list")),
                }
                Ok(())
            }
            _ => {
                let items = if opcode == b's' {
                    let value = self.pop()?;
                    vec![self.pop()?, value]
                } else {
                    self.pop_mark()?
                };
                let pairs = pairs(&items)?;
                self.hold(items.len())?;
                match self.top_node()? {
                    Node::Dict(dict) => dict.extend(pairs),
                    _ => {
                        return Err(Problem::WrongType(
                            "a value other than a dictionary as a dictionary",
                        ));
                    }
                }
                Ok(())
            }
        }
    }

    fn tuple(&mut self, opcode: u8) -> Step<()> {
        let items = match opcode {
            b't' => self.pop_mark()?,
            b')' => vec![],
            _ => {
                let base = *self.marks.last().unwrap_or(&0);
                let count = usize::from(opcode - 0x84);
                let start = self.stack.len().checked_sub(count).filter(|start| *start >= base);
                self.stack.split_off(start.ok_or(Problem::StackEmpty)?)
            }
        };
        self.push_node(Node::Tuple(items))
    }

    fn global(&mut self, opcode: u8) -> Step<()> {
        let (module, name) = if opcode == b'c' {
            (self.line()?, self.line()?)
        } else {
            match (self.pop()?, self.pop()?) {
                (Value::Str(name), Value::Str(module)) => (module, name),
                _ => return Err(Problem::WrongType("something other than text as a name")),
            }
        };
        (self.allow)(module, name).map_err(|remedy| {
            let shown = |text: &str| text.chars().take(100).collect();
            Problem::Global { module: shown(module), name: shown(name), remedy }
        })?;
        self.push(Value::Global(module, name))
    }

    /// Keeps a call that Python would run as a description.
    fn describe(&mut self, opcode: u8) -> Step<()> {
        let value = self.pop()?;
        match opcode {
            b'Q' => self.push_node(Node::Persistent(value)),
            // Calling a class and making an object of it are one description.
            b'R' | 0x81 => {
                let (Value::Node(arguments), Value::Global(module, name)) = (value, self.pop()?)
                else {
                    return Err(Problem::WrongType("a value other than a name as a function"));
                };
                let Node::Tuple(items) = &self.nodes[arguments.0] else {
                    return Err(Problem::WrongType("a value other than a tuple as arguments"));
                };
                // The calls that give a dictionary, which later opcodes fill.
                match (module, name) {
                    ("collections", "OrderedDict") if items.is_empty() => {
                        return self.push_node(Node::Dict(vec![]));
                    }
                    ("collections", "defaultdict") if items.len() <= 1 => {
                        return self.push_node(Node::Dict(vec![]));
                    }
                    _ => {}
                }
                self.push_node(Node::Call { callee: (module, name), arguments, state: None })
            }
            _ => {
                match self.top_node()? {
                    Node::Call { state, .. } => *state = Some(value),
                    // Attributes of a dictionary: the versions that PyTorch notes on a state_dict.
                    Node::Dict(_) => {}
                    _ => return Err(Problem::WrongType("a list or tuple as an object")),
                }
                Ok(())
            }
        }
    }

    fn memo(&mut self, opcode: u8) -> Step<()> {
        let index = match opcode {
            b'q' | b'h' => u8::from_le_bytes(self.take_array()?).into(),
            b'r' | b'j' => u32::from_le_bytes(self.take_array()?),
            _ => self.memo.len() as u32,
        };
        if matches!(opcode, b'h' | b'j') {
            let value = *self.memo.get(&index).ok_or(Problem::MemoMissing(index))?;
            return self.push(value);
        }
        if self.memo.len() >= VALUES_MAX {
            return Err(Problem::TooMany(VALUES_MAX));
        }
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn mark(&mut self) -> Step<()> {
        if self.marks.len() >= VALUES_MAX {
            return Err(Problem::TooMany(VALUES_MAX));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) -> Step<()> {
        if self.stack.len() >= VALUES_MAX {
            return Err(Problem::TooMany(VALUES_MAX));
        }
        self.stack.push(value);
        Ok(())
    }

    /// Counts values that go into a node: a byte of the pickle can become one.
    fn hold(&mut self, count: usize) -> Step<()> {
        self.held += count;
        if self.held > VALUES_MAX { Err(Problem::TooMany(VALUES_MAX)) } else { Ok(()) }
    }

    fn push_node(&mut self, node: Node<'a>) -> Step<()> {
        self.hold(match &node {
            Node::List(items) | Node::Tuple(items) => items.len(),
            Node::Dict(pairs) => 2 * pairs.len(),
            Node::Call { .. } | Node::Persistent(_) => 0,
        })?;
        if self.nodes.len() >= VALUES_MAX {
            return Err(Problem::TooMany(VALUES_MAX));
        }
        self.nodes.push(node);
        self.push(Value::Node(NodeId(self.nodes.len() - 1)))
    }

    /// Takes a value above the last mark; values below belong to an outer list.
    fn pop(&mut self) -> Step<Value<'a>> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn top(&self) -> Step<Value<'a>> {
        let base = *self.marks.last().unwrap_or(&0);
        self.stack[base..].last().copied().ok_or(Problem::StackEmpty)
    }

    fn top_node(&mut self) -> Step<&mut Node<'a>> {
        match self.top()? {
            Value::Node(NodeId(id)) => Ok(&mut self.nodes[id]),
            _ => Err(Problem::WrongType("a plain value as an object")),
        }
    }

    fn pop_mark(&mut self) -> Step<Vec<Value<'a>>> {
        let mark = self.marks.pop().ok_or(Problem::StackEmpty)?;
        Ok(self.stack.split_off(mark))
    }

    fn take(&mut self, len: usize) -> Step<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..len).ok_or(Problem::Truncated)?;
        self.at += len;
        Ok(taken)
    }

    fn take_array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let taken = self.bytes[self.at..].first_chunk().ok_or(Problem::Truncated)?;
        self.at += N;
        Ok(*taken)
    }

    /// Bytes behind their own length, which is a number of `N` bytes.
    fn counted<const N: usize>(&mut self) -> Step<&'a [u8]> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.take_array::<N>()?);
        let len = usize::try_from(u64::from_le_bytes(wide)).map_err(|_| Problem::Truncated)?;
        self.take(len)
    }

    fn text<const N: usize>(&mut self) -> Step<&'a str> {
        std::str::from_utf8(self.counted::<N>()?).map_err(|_| Problem::Text)
    }

    fn line(&mut self) -> Step<&'a str> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or(Problem::Truncated)?;
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).map_err(|_| Problem::Text)
    }
}

fn pairs<'a>(items: &[Value<'a>]) -> Step<Vec<(Value<'a>, Value<'a>)>> {
    match items.as_chunks() {
        (pairs, []) => Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect()),
        _ => Err(Problem::WrongType("a key without a value")),
    }
}

fn text_or_bytes(bytes: &[u8]) -> Value<'_> {
    std::str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Str)
}

/// Little-endian two's complement of any length that fits.
fn long(bytes: &[u8]) -> Step<i64> {
    if bytes.len() > 8 {
        return Err(Problem::Integer(bytes.len()));
    }
    let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Ok(i64::from_le_bytes(wide))
}
