//! The text of `cuobjdump -sass`, as instructions.

use std::fmt;

/// The register that reads as zero and swallows writes.
pub const RZ: u8 = 255;
/// The predicate that is always true.
pub const PT: u8 = 7;
/// The first uniform predicate; `UP0` is this number.
pub const UP0: u8 = 8;
/// The uniform register that reads as zero.
pub const URZ: u8 = 63;

/// One kernel's machine code.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    /// Instruction `i` is at byte `16 * i`.
    pub code: Vec<Instruction>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// The lanes that execute: a predicate, and whether it is negated.
    pub guard: (u8, bool),
    /// The mnemonic without its suffixes: `LDG` of `LDG.E.128.CONSTANT`.
    pub name: String,
    pub suffixes: Vec<String>,
    pub operands: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    Register {
        number: u8,
        is_negated: bool,
        part: Part,
    },
    Uniform {
        number: u8,
        is_negated: bool,
    },
    Predicate {
        number: u8,
        is_negated: bool,
    },
    /// A number as it is written, to be read as an integer or as a float by the instruction.
    Integer(u32),
    Float(f64),
    Constant {
        offset: u32,
        is_negated: bool,
    },
    Address(Address),
    Barrier(u8),
    Special(String),
}

/// What of a register an instruction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    All,
    /// A half: 0 or 1.
    Half(u8),
    /// A byte: 0 to 3.
    Byte(u8),
}

/// `desc[UR4][R2.64+0x10]`, `[R3.X16+UR4+0x8]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Address {
    pub descriptor: Option<u8>,
    pub register: Option<u8>,
    /// The register is a pair.
    pub is_wide: bool,
    pub scale: u32,
    pub uniform: Option<u8>,
    pub offset: i64,
}

/// Text that is no known instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot read the instruction `{}`", self.0)
    }
}

/// All kernels of a disassembly.
pub fn parse(text: &str) -> Result<Vec<Program>, Unreadable> {
    let mut programs: Vec<Program> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.trim().strip_prefix("Function : ") {
            programs.push(Program { name: name.into(), code: Vec::new() });
            continue;
        }
        let Some(program) = programs.last_mut() else { continue };
        // Lines of code begin with their address; the others hold only the encoding.
        let Some((at, rest)) = line.trim().strip_prefix("/*").and_then(|l| l.split_once("*/"))
        else {
            continue;
        };
        let Ok(at) = usize::from_str_radix(at, 16) else { continue };
        let Some((code, _)) = rest.split_once(';') else { continue };
        assert_eq!(at, program.code.len() * 16, "code of {} has gaps", program.name);
        program.code.push(instruction(code)?);
    }
    Ok(programs)
}

/// One instruction, without its address.
pub fn instruction(text: &str) -> Result<Instruction, Unreadable> {
    let unreadable = || Unreadable(text.trim().to_string());
    let mut rest = text.trim();
    let mut guard = (PT, false);
    if let Some(after) = rest.strip_prefix('@') {
        let (name, code) = after.split_once(' ').ok_or_else(unreadable)?;
        guard = predicate(name).ok_or_else(unreadable)?;
        rest = code.trim();
    }
    let (mnemonic, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut words = mnemonic.split('.');
    let name = words.next().unwrap_or_default().to_string();
    let operands = operands.split(',').map(str::trim).filter(|operand| !operand.is_empty());
    let operands: Option<Vec<Operand>> = operands.map(operand).collect();
    Ok(Instruction {
        guard,
        name,
        suffixes: words.map(str::to_string).collect(),
        operands: operands.ok_or_else(unreadable)?,
    })
}

fn operand(text: &str) -> Option<Operand> {
    if text.contains('[') && !text.starts_with("c[") && !text.starts_with("-c[") {
        return address(text).map(Operand::Address);
    }
    let (body, is_negated) = match text.strip_prefix('-') {
        Some(body) if !body.starts_with(|c: char| c.is_ascii_digit() || c == 'I' || c == 'Q') => {
            (body, true)
        }
        _ => (text, false),
    };
    if let Some(constant) = body.strip_prefix("c[0x0][") {
        let offset = match constant.strip_suffix(']')? {
            "RZ" => 0,
            number => u32::from_str_radix(number.strip_prefix("0x")?, 16).ok()?,
        };
        return Some(Operand::Constant { offset, is_negated });
    }
    if let Some((number, is_negated)) = predicate(text) {
        return Some(Operand::Predicate { number, is_negated });
    }
    if let Some(number) = uniform(body) {
        return Some(Operand::Uniform { number, is_negated });
    }
    if let Some((number, part)) = register(body) {
        return Some(Operand::Register { number, is_negated, part });
    }
    if let Some(number) = text.strip_prefix('B').and_then(|n| n.parse().ok()) {
        return Some(Operand::Barrier(number));
    }
    if text.starts_with('S') || text == "PR" {
        return Some(Operand::Special(text.into()));
    }
    number(text)
}

fn number(text: &str) -> Option<Operand> {
    match text {
        "+INF" | "INF" => return Some(Operand::Float(f64::INFINITY)),
        "-INF" => return Some(Operand::Float(f64::NEG_INFINITY)),
        "+QNAN" | "QNAN" => return Some(Operand::Float(f64::NAN)),
        _ => {}
    }
    let (body, is_negated) = text.strip_prefix('-').map_or((text, false), |body| (body, true));
    if let Some(hex) = body.strip_prefix("0x") {
        let value = u32::from_str_radix(hex, 16).ok()?;
        return Some(Operand::Integer(if is_negated { value.wrapping_neg() } else { value }));
    }
    text.parse().ok().map(Operand::Float)
}

fn predicate(text: &str) -> Option<(u8, bool)> {
    let (body, is_negated) = text.strip_prefix('!').map_or((text, false), |body| (body, true));
    let number = match body {
        "PT" | "UPT" => PT,
        _ => match body.strip_prefix("UP") {
            Some(number) => UP0 + number.parse::<u8>().ok().filter(|n| *n < PT)?,
            None => body.strip_prefix('P')?.parse().ok().filter(|n| *n < PT)?,
        },
    };
    Some((number, is_negated))
}

fn uniform(text: &str) -> Option<u8> {
    match text {
        "URZ" => Some(URZ),
        _ => text.strip_prefix("UR")?.parse().ok(),
    }
}

fn register(text: &str) -> Option<(u8, Part)> {
    let mut words = text.split('.');
    let number = match words.next()? {
        "RZ" => RZ,
        name => name.strip_prefix('R')?.parse().ok()?,
    };
    let mut part = Part::All;
    for word in words {
        part = match word {
            "H0_H0" => Part::Half(0),
            "H1_H1" => Part::Half(1),
            "B0" => Part::Byte(0),
            "B1" => Part::Byte(1),
            "B2" => Part::Byte(2),
            "B3" => Part::Byte(3),
            "reuse" | "64" => part,
            _ => return None,
        };
    }
    Some((number, part))
}

fn address(text: &str) -> Option<Address> {
    let mut address = Address { scale: 1, ..Address::default() };
    let mut body = text;
    if let Some(rest) = body.strip_prefix("desc[") {
        let (descriptor, rest) = rest.split_once(']')?;
        address.descriptor = Some(uniform(descriptor)?);
        body = rest;
    }
    let body = body.strip_prefix('[')?.strip_suffix(']')?;
    for term in body.split('+').filter(|term| !term.is_empty()) {
        if let Some(number) = uniform(term) {
            address.uniform = Some(number);
        } else if term.starts_with('R') {
            let mut words = term.split('.');
            address.register = register(words.next()?).map(|(number, _)| number);
            for word in words {
                match word {
                    "64" => address.is_wide = true,
                    "X4" => address.scale = 4,
                    "X8" => address.scale = 8,
                    "X16" => address.scale = 16,
                    "U32" | "reuse" => {}
                    _ => return None,
                }
            }
        } else {
            let (digits, sign) = term.strip_prefix('-').map_or((term, 1), |digits| (digits, -1));
            address.offset += sign * i64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
        }
    }
    Some(address)
}

impl Instruction {
    pub fn has(&self, suffix: &str) -> bool {
        self.suffixes.iter().any(|word| word == suffix)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        self.suffixes.iter().try_for_each(|suffix| write!(f, ".{suffix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_read() {
        let code =
            instruction("@!P3 LDG.E.128.CONSTANT R8, desc[UR4][R8.64+-0x10] ").expect("readable");
        assert_eq!(code.guard, (3, true));
        assert!(code.name == "LDG" && code.has("128"));
        let Operand::Address(address) = &code.operands[1] else { panic!("no address") };
        assert_eq!((address.descriptor, address.offset, address.is_wide), (Some(4), -16, true));
        let code = instruction("FSEL R1, RZ, -INF , !P2").expect("readable");
        assert_eq!(code.operands[2], Operand::Float(f64::NEG_INFINITY));
        assert_eq!(code.operands[3], Operand::Predicate { number: 2, is_negated: true });
        assert!(instruction("FROB R1, ~~").is_err());
    }
}
