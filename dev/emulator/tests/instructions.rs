//! Runs assembled tile instructions through the handler.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code, reason = "inline assembly")]
#![allow(missing_docs, reason = "tests")]

use std::arch::asm;

#[test]
fn a_product_of_tiles_is_emulated() {
    if std::arch::is_x86_feature_detected!("avx512f")
        && std::fs::read_to_string("/proc/cpuinfo").unwrap().contains("amx_tile")
    {
        eprintln!("skipped: this machine has tiles of its own");
        return;
    }
    assert!(latent_emulator::install_amx());
    let mut config = [0u8; 64];
    config[0] = 1;
    for tile in 0..3 {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    let one = 0x3f80u16;
    let (left, right, mut sums) = ([one; 512], [one; 512], [0.5f32; 256]);
    let before = latent_emulator::computed();
    // SAFETY: tiles of 16 rows of 64 bytes, from and to arrays of as many.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tileloadd tmm0, [{sums} + {stride}]",
            "tileloadd tmm1, [{left} + {stride}]",
            "tileloadd tmm2, [{right} + {stride}]",
            "tdpbf16ps tmm0, tmm1, tmm2",
            "tilestored [{sums} + {stride}], tmm0",
            "tilerelease",
            config = in(reg) config.as_ptr(),
            left = in(reg) left.as_ptr(),
            right = in(reg) right.as_ptr(),
            sums = in(reg) sums.as_mut_ptr(),
            stride = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _,
            options(nostack),
        );
    }
    assert_eq!(sums, [32.5; 256]);
    assert_eq!(latent_emulator::computed() - before, 7);
    // Tiles and the counter are per thread.
    assert_eq!(std::thread::spawn(latent_emulator::computed).join().unwrap(), 0);
}
