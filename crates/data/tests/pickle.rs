//! The unpickler alone: opcodes that it refuses, and whatever bytes.

use hither_data::pickle::{Node, Pickle, Problem, Value, numpy};
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

/// What `numpy.array([1, 2], dtype="<i4")` is in Python 2's protocol 2, less its elements.
const ARRAY: &[u8] =
    b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\
    \x87R(K\x01K\x02\x85cnumpy\ndtype\nU\x02i4K\0K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff\
    J\xff\xff\xff\xffK\0tb\x89";

fn array(bytes: &[u8]) -> Result<Vec<i64>, String> {
    let pickle = Pickle::read(bytes, numpy::allow).map_err(|error| error.to_string())?;
    let tensor = numpy::tensor(&pickle, pickle.root)?;
    Ok(tensor.as_i64().ok_or("no integers")?.into_owned())
}

#[test]
fn arrays_of_numpy() {
    let with = |elements: &[u8]| array(&[ARRAY, elements, b"tb."].concat());
    assert_eq!(with(b"U\x08\x01\0\0\0\x02\0\0\0"), Ok(vec![1, 2]));
    assert_eq!(with(b"U\x08\xff\xff\xff\xff\x02\0\0\0"), Ok(vec![-1, 2]));
    // Python 3 writes bytes for Python 2 as Latin text and a call.
    let latin = b"c_codecs\nencode\nX\x0c\0\0\0\xc3\xbf\xc3\xbf\xc3\xbf\xc3\xbf\x02\0\0\0\
        X\x06\0\0\0latin1\x86R";
    assert_eq!(with(latin), Ok(vec![-1, 2]));
    let error = with(b"U\x04\x01\0\0\0").expect_err("too few");
    assert_eq!(error, "its shape [2] does not fit 4 bytes");
    assert_eq!(with(b"K\x01").expect_err("a number"), "its elements are not bytes");
    assert_eq!(array(b"N.").expect_err("none"), "an array of NumPy is expected");
    let error = array(b"cos\nsystem\n.").expect_err("refused");
    assert!(error.contains("`os.system` is refused"), "{error}");
}

#[test]
fn dictionaries_with_a_default() {
    let bytes = b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(K\x01]K\x02au.";
    let pickle = Pickle::read(bytes, numpy::allow).expect("a dictionary");
    let Value::Node(root) = pickle.root else { panic!("no node") };
    let Node::Dict(pairs) = pickle.node(root) else { panic!("no dictionary") };
    assert_eq!(pairs.len(), 1);
    assert_eq!(pickle.items(pairs[0].1), Some(&[Value::Int(2)][..]));
}
