//! The unpickler alone: opcodes that it refuses, and whatever bytes.

use hither_data::pickle::{Node, Pickle, Problem, Value};
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Result<Pickle<'_>, (usize, Problem)> {
    let allow = |module: &str, _: &str| if module == "good" { Ok(()) } else { Err("do not") };
    Pickle::read(bytes, allow).map_err(|error| (error.at, error.problem))
}

#[test]
fn values() {
    let cases: [(&[u8], Value<'_>); 10] = [
        (b"N.", Value::None),
        (b"\x80\x02\x88.", Value::Bool(true)),
        (b"J\xff\xff\xff\xff.", Value::Int(-1)),
        (b"M\x01\x02.", Value::Int(0x201)),
        (b"\x8a\x00.", Value::Int(0)),
        (b"\x8a\x02\x00\x80.", Value::Int(-32768)),
        (b"G\x3f\xf8\0\0\0\0\0\0.", Value::Float(1.5)),
        (b"X\x02\0\0\0ab.", Value::Str("ab")),
        (b"C\x01a.", Value::Bytes(b"a")),
        (b"cgood\nname\n.", Value::Global("good", "name")),
    ];
    for (bytes, value) in cases {
        assert_eq!(read(bytes).expect("a value").root, value);
    }
}

#[test]
fn a_list_filled_after_it_was_stored_is_one_list() {
    let pickle = read(b"]q\x00(K\x01K\x02eh\x00\x86.").expect("a pair of the same list");
    let [Value::Node(one), Value::Node(other)] = pickle.items(pickle.root).expect("a tuple") else {
        panic!("not two lists")
    };
    assert_eq!(one, other);
    assert_eq!(pickle.node(*one), &Node::List(vec![Value::Int(1), Value::Int(2)]));
}

#[test]
fn calls_are_described_and_not_run() {
    let pickle = read(b"cgood\nname\n(K\x01tR}b.").expect("a call with a state");
    let Value::Node(id) = pickle.root else { panic!("not a call") };
    let Node::Call { callee, arguments, state } = pickle.node(id) else { panic!("not a call") };
    assert_eq!(*callee, ("good", "name"));
    assert_eq!(pickle.items(Value::Node(*arguments)), Some(&[Value::Int(1)][..]));
    assert!(state.is_some());
}

#[test]
fn what_is_refused_is_named_with_its_position() {
    let global = |module: &str| Problem::Global {
        module: module.into(),
        name: "system".into(),
        remedy: "do not",
    };
    let cases: [(&[u8], usize, Problem); 16] = [
        (b"", 0, Problem::Truncated),
        (b"N", 1, Problem::Truncated),
        (b"X\xff\xff\xff\xffa", 0, Problem::Truncated),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffa", 0, Problem::Truncated),
        (b"\x80\x06N.", 0, Problem::Protocol(6)),
        (b"Ncos\nsystem\n.", 1, global("os")),
        (b"X\x02\0\0\0osX\x06\0\0\0system\x93.", 18, global("os")),
        (b"(ios\nsystem\n.", 1, Problem::Opcode(b'i')),
        (b"(o.", 1, Problem::Opcode(b'o')),
        (b"P0\n.", 0, Problem::Opcode(b'P')),
        (b"h\x07.", 0, Problem::MemoMissing(7)),
        (b".", 0, Problem::StackEmpty),
        (b"N(\x85.", 2, Problem::StackEmpty),
        (b"X\x01\0\0\0\xff.", 0, Problem::Text),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\0.", 0, Problem::Integer(9)),
        (b"N.N", 1, Problem::Trailing(1)),
    ];
    for (bytes, at, problem) in cases {
        assert_eq!(read(bytes).err(), Some((at, problem)), "{bytes:?}");
    }
    for bytes in [
        &b"NNR."[..],
        b"N)R.",
        b"NNa.",
        b"NNNs.",
        b"}(Nu.",
        b"(Nd.",
        b"NNb.",
        b"NN\x93.",
        b"NN\x81.",
        b"N)\x81.",
    ] {
        let problem = read(bytes).expect_err("a wrong type").1;
        assert!(matches!(problem, Problem::WrongType(_)), "{bytes:?}: {problem}");
    }
}

#[test]
fn endless_values_are_stopped() {
    for opcode in [b"N", b"(", b"]"] {
        let bytes = opcode.repeat(5 << 20);
        assert!(matches!(read(&bytes), Err((_, Problem::TooMany(_)))));
    }
}

/// Bytes that are mostly opcodes, so that they come far.
fn opcodes() -> impl Strategy<Value = Vec<u8>> {
    let known =
        b"N(012\x80\x95.c\x93R\x81bQqr\x94hj]lae}dsu)t\x85\x86\x87\x88\x89JKM\x8aG\x8cX\x8dUTCB\x8e";
    let opcode = prop::sample::select(known.to_vec());
    prop::collection::vec(prop_oneof![8 => opcode, 2 => 0..4_u8, 1 => any::<u8>()], 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in opcodes()) {
        let _ = read(&bytes);
    }
}
