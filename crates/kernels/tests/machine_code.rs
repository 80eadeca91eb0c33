//! What the compiler made of the loops over rows. A branch per row, or a prefetch that compiles to
//! something else, changes no result: only the machine code shows it.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::collections::BTreeMap;
use std::process::Command;

use hither_kernels::bag::{Bags, Ids, OutOfRange, Settings, embed};
use hither_kernels::detect::Isa;

struct Instruction {
    at: u64,
    name: String,
    operands: String,
}

impl Instruction {
    fn is_conditional_jump(&self) -> bool {
        self.name.starts_with('j') && self.name != "jmp"
    }

    fn is_vector_store(&self) -> bool {
        let to = self.operands.split(',').next().unwrap_or("");
        ["vmov", "vmaskmov"].iter().any(|name| self.name.starts_with(name)) && to.contains("PTR")
    }

    /// Where a jump goes.
    fn target(&self) -> Option<u64> {
        let word = self.operands.split_whitespace().next()?;
        self.name.starts_with('j').then(|| u64::from_str_radix(word, 16).ok()).flatten()
    }
}

/// The functions of this program whose names contain `part`, by symbol.
fn functions(part: &str) -> BTreeMap<String, Vec<Instruction>> {
    let program = std::env::current_exe().expect("this program");
    let done = Command::new("objdump")
        .args(["-d", "--demangle", "--no-show-raw-insn", "-M", "intel"])
        .arg(program)
        .output()
        .expect("objdump of binutils, which every linker comes with");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    let mut functions = BTreeMap::new();
    let mut current: Option<(String, Vec<Instruction>)> = None;
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(">:") {
            functions.extend(current.take());
            current = name.contains(part).then(|| (name.to_string(), Vec::new()));
        } else if let (Some((_, body)), Some((at, rest))) = (&mut current, line.split_once(":\t")) {
            let (name, operands) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            let at = u64::from_str_radix(at.trim(), 16).expect("an address");
            body.push(Instruction { at, name: name.into(), operands: operands.trim().into() });
        }
    }
    functions.extend(current);
    functions
}

/// The innermost loops: from a jump's target back to the last jump there, with no other loop inside.
fn innermost_loops(body: &[Instruction]) -> Vec<&[Instruction]> {
    let place = |at: u64| body.binary_search_by_key(&at, |instruction| instruction.at).ok();
    let ends: BTreeMap<usize, usize> = (body.iter().enumerate())
        .filter_map(|(end, jump)| Some((place(jump.target()?)?, end)))
        .filter(|(start, end)| start <= end)
        .collect();
    let mut loops: Vec<(usize, usize)> = ends.into_iter().collect();
    let all = loops.clone();
    loops.retain(|(start, end)| {
        !all.iter().any(|(s, e)| (s, e) != (start, end) && start <= s && e <= end)
    });
    loops.into_iter().map(|(start, end)| &body[start..=end]).collect()
}

/// Loops over bags claim lines of the output, write to it, or jump over code that lies between their
/// parts and is not in the loop.
fn is_loop_over_bags(body: &[Instruction]) -> bool {
    let range = body[0].at..=body[body.len() - 1].at;
    let leaves = |i: &Instruction| {
        i.name == "jmp" && i.target().is_some_and(|target| !range.contains(&target))
    };
    let is_output = |i: &Instruction| i.is_vector_store() && !i.operands.contains("rsp");
    body.iter().any(|i| i.name == "prefetchw" || i.name == "call" || is_output(i) || leaves(i))
}

/// A lookup, so that the linker keeps the kernels.
fn use_the_kernels() {
    let settings = Settings { isa: Isa::Reference, out_of_range: OutOfRange::Error };
    let none = Bags { batch: 0, ids: Ids::I64(&[]), offsets: &[0], weights: None };
    assert_eq!(embed(&[], &none, &mut [], &settings), Ok(0));
}

#[test]
fn loops_over_rows_have_no_branch_and_fetch_what_they_promise() {
    use_the_kernels();
    let functions: BTreeMap<_, _> = functions("::enter::inside")
        .into_iter()
        .filter(|(name, _)| name.contains("bag::"))
        .collect();
    let has = |body: &[Instruction], name: &str| body.iter().any(|i| i.name.starts_with(name));
    let (mut float_loops, mut integer_loops, mut dots) = (0, 0, 0);
    for (name, body) in &functions {
        assert!(has(body, "prefetchw"), "{name}: output lines are not claimed");
        for row_loop in innermost_loops(body) {
            let is_integer = has(row_loop, "vpdpbusd") || has(row_loop, "vpmaddwd");
            let is_float = ["vaddps", "vfmadd", "vmaxps"].iter().any(|op| has(row_loop, op));
            if !is_integer && !is_float || is_loop_over_bags(row_loop) {
                continue;
            }
            let jumps = row_loop.iter().filter(|i| i.is_conditional_jump()).count();
            let at = row_loop[0].at;
            assert!(jumps <= 1, "{name}: {jumps} conditional jumps in the loop at {at:x}");
            let stored = row_loop.iter().filter(|i| i.is_vector_store()).count();
            let few = !has(row_loop, "vpdpbusd") || stored <= 2;
            assert!(few, "{name}: {stored} sums do not stay in registers in the loop at {at:x}");
            dots += usize::from(has(row_loop, "vpdpbusd"));
            integer_loops += usize::from(is_integer);
            float_loops += usize::from(is_float);
        }
    }
    let seen = format!("{dots} with VNNI, {integer_loops} in integers, {float_loops} in fp32");
    assert!(dots >= 20 && integer_loops >= 60 && float_loops >= 80, "loops found: {seen}");
}
