//! A program that ends while files are being written. A separate program, because it would remove
//! the files of other tests.
#![allow(missing_docs, reason = "tests")]

use latent_files::{OutputFile, OutputFolder, output_file};

#[test]
fn unfinished_files_are_removed_at_exit() {
    let folder = tempfile::tempdir().unwrap();
    let _made = OutputFolder::create(&folder.path().join("new")).unwrap();
    let file = OutputFile::create(&folder.path().join("new/file")).unwrap();
    assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    output_file::remove_unfinished();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(file.finish().is_err());
}
