//! The handler of SIGILL.

use crate::decode::{Address, Base, Instruction, LONGEST, decode};
use crate::tiles::{Refused, Tiles};
use std::cell::UnsafeCell;
use std::mem;
use std::sync::OnceLock;

thread_local! {
    /// Tiles of this thread, and how many instructions have been computed. Constant and without a destructor, so that a handler may use it.
    static TILES: UnsafeCell<(Tiles, u64)> = const { UnsafeCell::new((Tiles::new(), 0)) };
}

/// Where the system's context keeps the register of each number.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

pub(crate) fn computed() -> u64 {
    // SAFETY: a copy of a number, which nobody else writes: handlers run to their end before this goes on.
    TILES.with(|tiles| unsafe { (*tiles.get()).1 })
}

pub(crate) fn install() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: sigaction with a handler of the SA_SIGINFO kind, fully initialised.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
        }
    })
}

/// Computes the instruction at which the thread stands, and moves it behind; else makes the signal end the process.
extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the context of the kind that the system passes; the bytes at the instruction are mapped, since the processor has read them. An
    // instruction may lie at the end of its page, and its bytes are read one by one up to there.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const u8;
        let mapped = LONGEST.min(4096 - at as usize % 4096);
        let mut bytes = [0; LONGEST];
        std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), mapped);
        let done = decode(&bytes).is_some_and(|(instruction, length)| {
            let next = at as i64 + length as i64;
            let done = compute(instruction, registers, next).is_ok();
            if done {
                registers[libc::REG_RIP as usize] = next;
            }
            done
        });
        if !done {
            // the instruction runs again and ends the process
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        }
    }
}

/// Does what an instruction does.
///
/// # Safety
/// Called by the handler, for an instruction that the thread runs and with its registers.
unsafe fn compute(instruction: Instruction, registers: &[i64; 23], next: i64) -> Result<(), Refused> {
    let register = |number: u8| registers[REGISTERS[usize::from(number)] as usize];
    let address = |at: &Address, with_index: bool| {
        let base = match at.base {
            Base::Register(number) => register(number),
            Base::NextInstruction => next,
            Base::Nothing => 0,
        };
        let index = at.index.filter(|_| with_index).map_or(0, |(number, power)| register(number) << power);
        base.wrapping_add(index).wrapping_add(i64::from(at.displacement)) as *mut u8
    };
    let row = |at: &Address, i: usize| {
        let stride = at.index.map_or(0, |(number, power)| register(number) << power);
        (address(at, false) as i64).wrapping_add(stride.wrapping_mul(i as i64)) as *mut u8
    };
    TILES.with(|all| {
        // SAFETY: the thread's own, and only its handler uses it, which the signal blocks until it ends. Memory is what the instruction names.
        unsafe {
            let (tiles, count) = &mut *all.get();
            *count += 1;
            match instruction {
                Instruction::LoadConfig(at) => {
                    tiles.configure(&address(&at, true).cast::<[u8; 64]>().read_unaligned())
                }
                Instruction::StoreConfig(at) => {
                    address(&at, true).cast::<[u8; 64]>().write_unaligned(tiles.config());
                    Ok(())
                }
                Instruction::Release => {
                    tiles.release();
                    Ok(())
                }
                Instruction::Zero(tile) => tiles.zero(tile),
                Instruction::Load(tile, at) => tiles.load(tile, |i, bytes| {
                    std::ptr::copy_nonoverlapping(row(&at, i), bytes.as_mut_ptr(), bytes.len());
                }),
                Instruction::Store(tile, at) => tiles.store(tile, |i, bytes| {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), row(&at, i), bytes.len());
                }),
                Instruction::DotBf16 { sum, left, right } => dot_bf16(tiles, sum, left, right),
                Instruction::DotBytes { sum, left, right, signs } => tiles.dot_bytes(sum, left, right, signs),
            }
        }
    })
}

/// Products of bf16, with fused multiply-adds in vectors where the processor has them.
fn dot_bf16(tiles: &mut Tiles, sum: usize, left: usize, right: usize) -> Result<(), Refused> {
    #[target_feature(enable = "avx2,fma")]
    fn vectors(tiles: &mut Tiles, sum: usize, left: usize, right: usize) -> Result<(), Refused> {
        tiles.dot_bf16(sum, left, right)
    }
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: as just asked.
        return unsafe { vectors(tiles, sum, left, right) };
    }
    tiles.dot_bf16(sum, left, right)
}
