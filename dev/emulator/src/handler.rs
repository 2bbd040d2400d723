//! The handler of SIGILL.

use crate::decode::{AddressBase, Instruction, MAX_LENGTH, MIN_LENGTH, MemoryOperand, VEX, decode};
use crate::tiles::{TileRefusal, TileRegisters};
use std::cell::UnsafeCell;
use std::mem;
use std::sync::OnceLock;

thread_local! {
    /// The tiles of this thread, and the number of instructions emulated for it.
    // The signal handler uses this. A constant initializer and a type without a destructor need no
    // lazy initialization, which could allocate or take a lock.
    static TILES: UnsafeCell<(TileRegisters, u64)> = const { UnsafeCell::new((TileRegisters::new(), 0)) };
}

/// Index of each general register in the signal context, in the order in which instructions encode
/// them.
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
    // SAFETY: copies a thread-local integer; only this thread's handler writes it, and it runs to
    // its end before this continues.
    TILES.with(|tiles| unsafe { (*tiles.get()).1 })
}

pub(crate) fn install() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: sigaction with a handler of the SA_SIGINFO kind, fully initialised.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            // Without SA_NODEFER the signal is blocked while the handler runs, so the handler
            // cannot interrupt itself on this thread. SA_SIGINFO passes the context with the
            // registers.
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) == 0
        }
    })
}

/// Emulates the instruction at the thread's instruction pointer and the tile instructions that
/// directly follow it, and advances the pointer past them. Instructions that cannot be emulated end
/// the process.
extern "C" fn handle(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the context is a `ucontext_t`, and the instruction pointer is at an
    // instruction that the processor has fetched.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let mut at = registers[libc::REG_RIP as usize] as *const u8;
        let mut next = emulate(at, registers);
        if next.is_none() {
            // Returning without advancing runs the instruction again. With the default action
            // restored, it then ends the process as if this handler had not been installed.
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        }
        // A signal takes longer than most instructions, and kernels have several in a row. The
        // processor has not fetched the next ones, so their page must be that of the first. An
        // instruction that is refused here raises a signal of its own.
        while let Some(end) = next {
            registers[libc::REG_RIP as usize] = end as i64;
            let in_page = at as usize / PAGE == (end as usize + MAX_LENGTH - 1) / PAGE;
            at = end;
            next = if in_page { emulate(at, registers) } else { None };
        }
    }
}

/// Emulates the instruction at an address and returns the address of the next one; `None` if it is
/// not a tile instruction or is refused.
///
/// # Safety
/// As for [`read`]; the registers are those of the interrupted thread.
unsafe fn emulate(at: *const u8, registers: &[i64; 23]) -> Option<*const u8> {
    // SAFETY: this function's contract.
    unsafe {
        let (instruction, length) = read(at)?;
        let next = at.wrapping_add(length);
        compute(instruction, registers, next as i64).ok()?;
        Some(next)
    }
}

/// Bytes of a page of memory.
const PAGE: usize = 4096;

/// The tile instruction at an address, and its length. Reads the next page only if the instruction
/// extends into it, as that page may be unmapped.
///
/// # Safety
/// The processor has read an instruction there, or the page has [`MAX_LENGTH`] bytes from there on.
unsafe fn read(at: *const u8) -> Option<(Instruction, usize)> {
    let mut known = MAX_LENGTH.min(PAGE - at as usize % PAGE);
    let mut bytes = [0; MAX_LENGTH];
    loop {
        // SAFETY: bytes of the page in which the instruction begins, or of the instruction itself.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), known) }
        // Bytes that were not read are zero, which gives the shortest instruction with these first
        // bytes. If even that one crosses the page's end, its bytes are mapped, because the
        // processor has fetched them.
        let found = decode(&bytes);
        let length = match found {
            Some((_, length)) => length,
            None if bytes[0] == VEX => MIN_LENGTH,
            None => return None,
        };
        if length <= known {
            return found;
        }
        known = length;
    }
}

/// Emulates an instruction.
///
/// # Safety
/// Called by the handler, for an instruction that the thread runs and with its registers.
unsafe fn compute(instruction: Instruction, registers: &[i64; 23], next: i64) -> Result<(), TileRefusal> {
    let register = |number: u8| registers[REGISTERS[usize::from(number)] as usize];
    let address = |at: &MemoryOperand, with_index: bool| {
        let base = match at.base {
            AddressBase::Register(number) => register(number),
            AddressBase::NextInstruction => next,
            AddressBase::Nothing => 0,
        };
        let index = at.index.filter(|_| with_index).map_or(0, |(number, power)| register(number) << power);
        base.wrapping_add(index).wrapping_add(i64::from(at.displacement)) as *mut u8
    };
    // Row i of a tile is at base + displacement + i · stride.
    let row = |at: &MemoryOperand, i: usize| {
        let stride = at.index.map_or(0, |(number, power)| register(number) << power);
        (address(at, false) as i64).wrapping_add(stride.wrapping_mul(i as i64)) as *mut u8
    };
    TILES.with(|all| {
        // SAFETY: the tiles are thread-local and borrowed only by the handler, during which the
        // signal is blocked. Memory operands are those of the instruction, which the interrupted
        // code vouches for.
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

/// Product of bf16 tiles, vectorized with fused multiply-add if the CPU has it.
fn dot_bf16(tiles: &mut TileRegisters, sum: usize, left: usize, right: usize) -> Result<(), TileRefusal> {
    // `TileRegisters::dot_bf16` is inlined into this function and compiled with its features.
    // Without FMA, `mul_add` calls a library function for each term.
    #[target_feature(enable = "avx2,fma")]
    fn vectors(tiles: &mut TileRegisters, sum: usize, left: usize, right: usize) -> Result<(), TileRefusal> {
        tiles.dot_bf16(sum, left, right)
    }
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the features were detected above.
        return unsafe { vectors(tiles, sum, left, right) };
    }
    tiles.dot_bf16(sum, left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes tilestored [r13 + 2*r12 + 1024], tmm1 and tdpbf16ps tmm0, tmm4, tmm6 with a page
    /// boundary at every place in them.
    #[test]
    fn instructions_may_cross_a_page_boundary() {
        let long = [0xc4, 0x82, 0x7a, 0x4b, 0x8c, 0x65, 0, 4, 0, 0];
        let short = [0xc4, 0xe2, 0x4a, 0x5c, 0xc4];
        let mut memory = vec![0u8; 3 * 4096];
        let page = memory.as_ptr().align_offset(4096) + 4096;
        for (bytes, length) in [(&long[..], 10), (&short[..], 5)] {
            for before in 0..=length {
                memory.fill(0);
                memory[page - before..][..length].copy_from_slice(bytes);
                // SAFETY: the bytes of an instruction were written there.
                let found = unsafe { read(memory[page - before..].as_ptr()) };
                assert!(found.is_some_and(|(_, found)| found == length), "{before} bytes before a page");
            }
        }
    }
}
