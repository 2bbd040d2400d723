//! Bank conflicts in workgroup memory, computed from a shader's text. An interpreter runs the text
//! for 32 threads: both branches of a condition if it is unknown, and the body of each loop once.
//! Values that depend on parameters or buffers are unknown. Accesses with such an index are not
//! counted.

use latent_backend::BankConflicts;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use wgpu::naga::{
    AddressSpace, BinaryOperator, Binding, Block, BuiltIn, Expression, Function, GlobalVariable, Handle,
    Literal, LocalVariable, MathFunction, Module, Statement, Type, TypeInner, UnaryOperator,
};

/// Threads per subgroup, and number of 4-byte banks, of most GPUs.
const LANES: usize = 32;

type LaneValues = [u32; LANES];
type LaneMask = [bool; LANES];

/// Counts the bank conflicts of a shader's first 32 threads.
pub(crate) fn bank_conflicts(module: &Module) -> BankConflicts {
    let Some(main) = module.entry_points.first() else { return BankConflicts::default() };
    let threads: u32 = main.workgroup_size.iter().product();
    let mut run = ConflictCounter { module, found: BankConflicts::default() };
    let arguments = main.function.arguments.iter().map(|argument| built_in(argument.binding.as_ref()));
    let mut frame = CallFrame::new(arguments.collect());
    // A workgroup may have fewer than 32 threads.
    run.block(&main.function, &main.function.body, &mut frame, std::array::from_fn(|i| i < threads as usize));
    run.found
}

/// The value of an expression in all threads.
#[derive(Clone, Debug)]
enum Value {
    Number(LaneValues),
    Vector(Vec<Value>),
    Local(Handle<LocalVariable>),
    /// A pointer to workgroup memory: each thread's byte offset, the size in bytes, and the type if
    /// it has elements.
    Shared(LaneValues, u32, Option<Handle<Type>>),
    Unknown,
}

fn built_in(binding: Option<&Binding>) -> Value {
    let number = |of: fn(usize) -> u32| Value::Number(std::array::from_fn(of));
    match binding {
        Some(Binding::BuiltIn(BuiltIn::LocalInvocationIndex | BuiltIn::SubgroupInvocationId)) => {
            number(|i| i as u32)
        }
        Some(Binding::BuiltIn(BuiltIn::LocalInvocationId | BuiltIn::GlobalInvocationId)) => {
            Value::Vector(vec![number(|i| i as u32), number(|_| 0), number(|_| 0)])
        }
        Some(Binding::BuiltIn(BuiltIn::SubgroupId)) => number(|_| 0),
        Some(Binding::BuiltIn(BuiltIn::SubgroupSize)) => number(|_| LANES as u32),
        Some(Binding::BuiltIn(BuiltIn::WorkGroupId)) => Value::Vector(vec![number(|_| 0); 3]),
        Some(Binding::BuiltIn(BuiltIn::NumWorkGroups)) => Value::Vector(vec![number(|_| 1); 3]),
        _ => Value::Unknown,
    }
}

/// The state of a function call.
struct CallFrame {
    arguments: Vec<Value>,
    values: HashMap<Handle<Expression>, Value>,
    locals: HashMap<Handle<LocalVariable>, Value>,
    returned: Value,
}

impl CallFrame {
    fn new(arguments: Vec<Value>) -> CallFrame {
        CallFrame { arguments, values: HashMap::new(), locals: HashMap::new(), returned: Value::Unknown }
    }
}

struct ConflictCounter<'m> {
    module: &'m Module,
    found: BankConflicts,
}

impl ConflictCounter<'_> {
    /// Runs statements for the threads of the mask. Returns the threads that are still active after
    /// them.
    fn block(
        &mut self,
        function: &Function,
        block: &Block,
        frame: &mut CallFrame,
        mut mask: LaneMask,
    ) -> LaneMask {
        for statement in block {
            match statement {
                Statement::Emit(range) => {
                    for expression in range.clone() {
                        let value = self.value(function, expression, frame);
                        if let Expression::Load { pointer } = function.expressions[expression] {
                            // The value of a load does not tell its address, so the pointer is
                            // evaluated once more.
                            self.access(&self.value(function, pointer, frame), &mask);
                        }
                        frame.values.insert(expression, value);
                    }
                }
                Statement::Block(inner) => mask = self.block(function, inner, frame, mask),
                Statement::If { condition, accept, reject } => {
                    let (yes, no) = match self.value(function, *condition, frame) {
                        Value::Number(truth) => {
                            let taken =
                                |wanted: bool| std::array::from_fn(|i| mask[i] && (truth[i] != 0) == wanted);
                            (taken(true), taken(false))
                        }
                        // Unknown: either branch may run in every thread.
                        _ => (mask, mask),
                    };
                    let accepted = self.block(function, accept, frame, yes);
                    let rejected = self.block(function, reject, frame, no);
                    mask = std::array::from_fn(|i| accepted[i] || rejected[i]);
                }
                Statement::Switch { cases, .. } => {
                    // All cases count, since the selector is not evaluated. The returned mask is
                    // ignored: a `break` leaves the switch, not the shader.
                    for case in cases {
                        self.block(function, &case.body, frame, mask);
                    }
                }
                // Once: later iterations usually differ by a distance that is the same for all
                // threads, which does not change conflicts.
                Statement::Loop { body, continuing, .. } => {
                    self.block(function, body, frame, mask);
                    self.block(function, continuing, frame, mask);
                }
                Statement::Return { value } => {
                    if let Some(value) = value {
                        frame.returned = self.value(function, *value, frame);
                    }
                    return [false; LANES];
                }
                Statement::Break | Statement::Continue | Statement::Kill => return [false; LANES],
                Statement::Store { pointer, value } => {
                    let value = self.value(function, *value, frame);
                    match self.value(function, *pointer, frame) {
                        Value::Local(local) => drop(frame.locals.insert(local, value)),
                        pointer => self.access(&pointer, &mask),
                    }
                }
                Statement::Atomic { pointer, .. } => {
                    self.access(&self.value(function, *pointer, frame), &mask)
                }
                Statement::Call { function: called, arguments, result } => {
                    let arguments = arguments.iter().map(|argument| self.value(function, *argument, frame));
                    let (called, mut inner) =
                        (&self.module.functions[*called], CallFrame::new(arguments.collect()));
                    self.block(called, &called.body, &mut inner, mask);
                    result.map(|result| frame.values.insert(result, inner.returned));
                }
                _ => {}
            }
        }
        mask
    }

    /// Counts an access, if it is one to workgroup memory.
    fn access(&mut self, pointer: &Value, mask: &LaneMask) {
        let Value::Shared(bytes, size, _) = pointer else { return };
        if !mask.contains(&true) {
            return;
        }
        let words = size.div_ceil(4).max(1);
        // Hardware splits an access to long elements: each part serves as many threads as 32 words
        // allow.
        let at_once = (LANES / words as usize).max(1);
        let mut ways = 0;
        for first in (0..LANES).step_by(at_once) {
            // A bank serves one word at a time, and threads that access the same word share it.
            // Distinct words per bank are therefore the number of turns.
            let mut banks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            for lane in (first..LANES.min(first + at_once)).filter(|lane| mask[*lane]) {
                for word in (0..words).map(|word| bytes[lane] / 4 + word) {
                    banks.entry(word % LANES as u32).or_default().insert(word);
                }
            }
            ways = banks.values().map(BTreeSet::len).max().unwrap_or(0).max(ways);
        }
        self.found.accesses += 1;
        self.found.conflicting += usize::from(ways > 1);
        self.found.worst = self.found.worst.max(ways);
    }

    fn value(&self, function: &Function, expression: Handle<Expression>, frame: &CallFrame) -> Value {
        if let Some(known) = frame.values.get(&expression) {
            return known.clone();
        }
        let of = |expression: Handle<Expression>| self.value(function, expression, frame);
        match function.expressions[expression] {
            Expression::Literal(literal) => number_of(literal),
            Expression::Constant(constant) => self.constant(self.module.constants[constant].init),
            Expression::FunctionArgument(i) => {
                frame.arguments.get(i as usize).cloned().unwrap_or(Value::Unknown)
            }
            Expression::GlobalVariable(variable) => self.variable(variable),
            Expression::LocalVariable(local) => Value::Local(local),
            Expression::Compose { ref components, .. } => {
                Value::Vector(components.iter().map(|component| of(*component)).collect())
            }
            Expression::Access { base, index } => self.element(of(base), &of(index)),
            Expression::AccessIndex { base, index } => self.element(of(base), &Value::Number([index; LANES])),
            Expression::Load { pointer } => match of(pointer) {
                Value::Local(local) => match (frame.locals.get(&local), function.local_variables[local].init)
                {
                    (Some(stored), _) => stored.clone(),
                    (None, Some(init)) => of(init),
                    (None, None) => Value::Unknown,
                },
                _ => Value::Unknown,
            },
            Expression::Unary { op, expr } => match (op, of(expr)) {
                (UnaryOperator::LogicalNot, Value::Number(a)) => Value::Number(a.map(|a| u32::from(a == 0))),
                (UnaryOperator::BitwiseNot, Value::Number(a)) => Value::Number(a.map(|a| !a)),
                (UnaryOperator::Negate, Value::Number(a)) => Value::Number(a.map(u32::wrapping_neg)),
                _ => Value::Unknown,
            },
            Expression::Binary { op, left, right } => binary(op, &of(left), &of(right)),
            Expression::Select { condition, accept, reject } => match (of(condition), of(accept), of(reject))
            {
                (Value::Number(c), Value::Number(a), Value::Number(b)) => {
                    Value::Number(std::array::from_fn(|i| if c[i] != 0 { a[i] } else { b[i] }))
                }
                _ => Value::Unknown,
            },
            Expression::Math { fun, arg, arg1: Some(arg1), .. } => match (fun, of(arg), of(arg1)) {
                (MathFunction::Min, Value::Number(a), Value::Number(b)) => zip(&a, &b, u32::min),
                (MathFunction::Max, Value::Number(a), Value::Number(b)) => zip(&a, &b, u32::max),
                _ => Value::Unknown,
            },
            // Conversions between types of four bytes keep an integer's value.
            Expression::As { expr, convert: Some(4), .. } => of(expr),
            _ => Value::Unknown,
        }
    }

    fn constant(&self, init: Handle<Expression>) -> Value {
        match self.module.global_expressions[init] {
            Expression::Literal(literal) => number_of(literal),
            Expression::Constant(constant) => self.constant(self.module.constants[constant].init),
            _ => Value::Unknown,
        }
    }

    fn variable(&self, variable: Handle<GlobalVariable>) -> Value {
        let GlobalVariable { space, ty, .. } = self.module.global_variables[variable];
        // An access touches one variable, so the variable's own offset shifts all banks equally.
        if space == AddressSpace::WorkGroup { self.shared([0; LANES], ty) } else { Value::Unknown }
    }

    fn shared(&self, bytes: LaneValues, ty: Handle<Type>) -> Value {
        Value::Shared(bytes, self.module.types[ty].inner.size(self.module.to_ctx()), Some(ty))
    }

    /// An element of a vector, or of an array in workgroup memory.
    fn element(&self, base: Value, index: &Value) -> Value {
        let Value::Number(index) = index else { return Value::Unknown };
        match base {
            // The index of a component is the same in all threads.
            Value::Vector(parts) => parts.get(index[0] as usize).cloned().unwrap_or(Value::Unknown),
            Value::Shared(bytes, _, Some(ty)) => {
                let at = |stride: u32| {
                    std::array::from_fn(|i| bytes[i].wrapping_add(index[i].wrapping_mul(stride)))
                };
                match self.module.types[ty].inner {
                    TypeInner::Array { base, stride, .. } => self.shared(at(stride), base),
                    TypeInner::Vector { scalar, .. } => {
                        let width = u32::from(scalar.width);
                        Value::Shared(at(width), width, None)
                    }
                    _ => Value::Unknown,
                }
            }
            _ => Value::Unknown,
        }
    }
}

fn number_of(literal: Literal) -> Value {
    match literal {
        Literal::U32(n) => Value::Number([n; LANES]),
        Literal::I32(n) => Value::Number([n as u32; LANES]),
        Literal::AbstractInt(n) => Value::Number([n as u32; LANES]),
        Literal::Bool(truth) => Value::Number([u32::from(truth); LANES]),
        _ => Value::Unknown,
    }
}

fn zip(a: &LaneValues, b: &LaneValues, each: impl Fn(u32, u32) -> u32) -> Value {
    Value::Number(std::array::from_fn(|i| each(a[i], b[i])))
}

fn binary(op: BinaryOperator, left: &Value, right: &Value) -> Value {
    let (Value::Number(a), Value::Number(b)) = (left, right) else { return Value::Unknown };
    match op {
        BinaryOperator::Add => zip(a, b, u32::wrapping_add),
        BinaryOperator::Subtract => zip(a, b, u32::wrapping_sub),
        BinaryOperator::Multiply => zip(a, b, u32::wrapping_mul),
        // WGSL defines x / 0 as x, and x % 0 as 0.
        BinaryOperator::Divide => zip(a, b, |a, b| a.checked_div(b).unwrap_or(a)),
        BinaryOperator::Modulo => zip(a, b, |a, b| a.checked_rem(b).unwrap_or(0)),
        BinaryOperator::Equal => zip(a, b, |a, b| u32::from(a == b)),
        BinaryOperator::NotEqual => zip(a, b, |a, b| u32::from(a != b)),
        BinaryOperator::Less => zip(a, b, |a, b| u32::from(a < b)),
        BinaryOperator::LessEqual => zip(a, b, |a, b| u32::from(a <= b)),
        BinaryOperator::Greater => zip(a, b, |a, b| u32::from(a > b)),
        BinaryOperator::GreaterEqual => zip(a, b, |a, b| u32::from(a >= b)),
        BinaryOperator::And | BinaryOperator::LogicalAnd => zip(a, b, |a, b| a & b),
        BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => zip(a, b, |a, b| a | b),
        BinaryOperator::ExclusiveOr => zip(a, b, |a, b| a ^ b),
        BinaryOperator::ShiftLeft => zip(a, b, u32::wrapping_shl),
        BinaryOperator::ShiftRight => zip(a, b, u32::wrapping_shr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> BankConflicts {
        let text = format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
             var<workgroup> a: array<f32, 4096>;
             var<workgroup> v: array<vec4<f32>, 256>;
             fn put(at: u32) {{ a[at] = 1.0; }}
             @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) i: u32) {{ {body} }}"
        );
        bank_conflicts(&wgpu::naga::front::wgsl::parse_str(&text).unwrap())
    }

    #[test]
    fn addresses_in_one_bank_are_counted() {
        let one = |conflicting, worst| BankConflicts { accesses: 1, conflicting, worst };
        // Neighbouring words, one address for all threads, and an odd stride.
        assert_eq!(of("a[i] = 1.0;"), one(0, 1));
        assert_eq!(of("y[i] = a[7];"), one(0, 1));
        assert_eq!(of("a[i * 65u] = 1.0;"), one(0, 1));
        // Strides of 2, 8 and 64.
        assert_eq!(of("a[i * 2u] = 1.0;"), one(1, 2));
        assert_eq!(of("a[i % 16u * 8u + i / 16u] = 1.0;"), one(1, 4));
        assert_eq!(of("y[i] = a[i * 64u];"), one(1, 32));
        // Vectors are moved by eight threads at a time.
        assert_eq!(of("v[i] = vec4<f32>(1.0);"), one(0, 1));
        assert_eq!(of("v[i * 2u] = vec4<f32>(1.0);"), one(1, 2));
    }

    #[test]
    fn threads_that_do_not_take_part_do_not_conflict() {
        assert_eq!(of("if i < 4u { a[i * 32u] = 1.0; }").worst, 4);
        assert_eq!(of("for (var e = i; e < 2u; e += 64u) { a[e * 32u] = 1.0; }").worst, 2);
        assert_eq!(of("if i >= 1u { return; } a[i * 32u] = 1.0;").worst, 1);
        assert_eq!(of("let half = i / 2u; if half == 1u { a[i * 32u] = 1.0; }").worst, 2);
        // Functions, and an unknown index.
        assert_eq!(
            of("let at = i * 32u; put(at); put(i);"),
            BankConflicts { accesses: 2, conflicting: 1, worst: 32 }
        );
        assert_eq!(of("a[u32(y[i])] = 1.0;"), BankConflicts::default());
    }
}
