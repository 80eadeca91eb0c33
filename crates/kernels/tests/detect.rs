//! What `HITHER_ISA` may say.

use hither_kernels::detect::{Isa, Limit};

#[test]
fn limits_are_read() {
    let limit = |text: &str| text.parse::<Limit>();
    assert_eq!(limit("").expect("no limit"), Limit::default());
    let avx2 = Limit { isa: Isa::Avx2, amx: true };
    assert_eq!(limit("avx2").expect("a set"), avx2);
    assert_eq!(limit("-amx").expect("less"), Limit { amx: false, ..Limit::default() });
    assert_eq!(limit("avx512, -amx").expect("both"), Limit { isa: Isa::Avx512, amx: false });
    assert!(limit("sse2").is_err() && limit("-vnni").is_err());
}
