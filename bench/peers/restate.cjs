// A Restate service with one handler; clients come by Restate's ingress, which keeps the answer of an idempotency key.
// Node 20 has no Promise.withResolvers, which the SDK uses.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new Promise((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
};
const restate = require("@restatedev/restate-sdk");

const answer = { id: "pay_0123456789", status: "succeeded", note: "x".repeat(146) };
const payments = restate.service({ name: "payments", handlers: { charge: async () => answer } });

async function register() {
  const uri = `http://127.0.0.1:${process.env.PORT}`;
  const body = JSON.stringify({ uri });
  const headers = { "content-type": "application/json" };
  for (;;) {
    const told = await fetch(`${process.env.RESTATE_ADMIN}/deployments`, { method: "POST", headers, body }).catch(() => null);
    if (told?.ok) return console.log("registered");
    await new Promise((later) => setTimeout(later, 200));
  }
}

restate.endpoint().bind(payments).listen(Number(process.env.PORT)).then(register);
