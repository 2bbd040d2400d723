//! The SIGILL handler.

use crate::decode::{Address, Base, Instruction, LONGEST, SHORTEST, VEX, decode};
use crate::tiles::{Refused, Tiles};
use std::cell::UnsafeCell;
use std::mem;
use std::sync::OnceLock;

thread_local! {
    /// Tiles of this thread, and the number of emulated instructions. Const-initialized and without a
    /// destructor, so that a signal handler may use it.
    static TILES: UnsafeCell<(Tiles, u64)> = const { UnsafeCell::new((Tiles::new(), 0)) };
}

/// Index of each register, by its encoding, in the signal context.
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
    // SAFETY: copies an integer of this thread; only its signal handler writes it, and that has returned
    // before this code goes on.
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

/// Emulates the instruction at the thread's instruction pointer and steps over it, or lets the signal end the
/// process.
extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a SA_SIGINFO handler gets a `ucontext_t`, and its instruction pointer is at an instruction that
    // the CPU has fetched.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const u8;
        let done = read(at).is_some_and(|(instruction, length)| {
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

/// The AMX instruction at an address, and its length. The page after it may be unmapped and is not read,
/// unless the instruction itself reaches into it.
///
/// # Safety
/// There is an instruction at the address, which the CPU has fetched.
unsafe fn read(at: *const u8) -> Option<(Instruction, usize)> {
    let mut known = LONGEST.min(4096 - at as usize % 4096);
    let mut bytes = [0; LONGEST];
    loop {
        // SAFETY: bytes of the page in which the instruction begins, or of the instruction itself; both are
        // mapped.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), known) }
        // missing bytes are taken as zero, with which the instruction decodes as the shortest that begins so
        let found = decode(&bytes);
        let length = match found {
            Some((_, length)) => length,
            None if bytes[0] == VEX => SHORTEST,
            None => return None,
        };
        if length <= known {
            return found;
        }
        known = length;
    }
}

/// Executes an instruction.
///
/// # Safety
/// Called by the handler, for the instruction that the thread was about to execute and with its registers.
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
        // SAFETY: the tiles are this thread's, and only its handler uses them, during which the signal is
        // blocked. Memory is what the instruction names.
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

/// [`Tiles::dot_bf16`], compiled with FMA where the CPU has it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// tilestored [r13 + 2*r12 + 1024], tmm1, and tdpbf16ps tmm0, tmm4, tmm6: wherever a page ends in them.
    #[test]
    fn an_instruction_may_lie_in_two_pages() {
        let long = [0xc4, 0x82, 0x7a, 0x4b, 0x8c, 0x65, 0, 4, 0, 0];
        let short = [0xc4, 0xe2, 0x4a, 0x5c, 0xc4];
        let mut memory = vec![0u8; 3 * 4096];
        let page = memory.as_ptr().align_offset(4096) + 4096;
        for (bytes, length) in [(&long[..], 10), (&short[..], 5)] {
            for before in 0..=length {
                memory.fill(0);
                memory[page - before..][..length].copy_from_slice(bytes);
                // SAFETY: there is an instruction.
                let found = unsafe { read(memory[page - before..].as_ptr()) };
                assert!(found.is_some_and(|(_, found)| found == length), "{before} bytes before a page");
            }
        }
    }
}
