// An Express service whose POST is protected by express-idempotency, with its default adapter: the process's memory.
const express = require("express");
const { idempotency, getSharedIdempotencyService } = require("express-idempotency");

const answer = { id: "pay_0123456789", status: "succeeded", note: "x".repeat(146) };
const app = express();
app.use(express.json());
app.use(idempotency());
app.post("/payments", (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return;
  response.status(201).json(answer);
});
app.listen(Number(process.env.PORT), "127.0.0.1");
