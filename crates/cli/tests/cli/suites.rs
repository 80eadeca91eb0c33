//! The integration tests of a crate are one binary. A file that its `main.rs` does not name is not run.

use std::fs;
use std::path::Path;

#[test]
fn every_test_file_is_part_of_its_crate_s_binary() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let mut files = 0;
    for entry in fs::read_dir(crates).expect("the crates").flatten() {
        let tests = entry.path().join("tests");
        let Ok(main) = fs::read_to_string(tests.join("main.rs")) else { continue };
        let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).expect("a manifest");
        for file in fs::read_dir(&tests).expect("the tests").flatten() {
            let path = file.path();
            if path.extension().is_none_or(|end| end != "rs") || path.ends_with("main.rs") {
                continue;
            }
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let is_run = main.lines().any(|line| line == format!("mod {name};"))
                || manifest.contains(&format!("path = \"tests/{name}.rs\""));
            assert!(is_run, "{} is in no test binary; name it in main.rs", path.display());
            files += 1;
        }
    }
    assert!(files > 50, "only {files} files of tests were found");
}
