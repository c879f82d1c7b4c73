// @ts-check
// A phone in a class: polls for the question of the moment and sends the answer. Plain old JavaScript, for old phones.
(function () {
  "use strict";
  var EVERY = 2000, SLOWEST = 16000, KEY = "specviz-phone";
  var room = location.pathname.replace(/\/+$/, "");
  var tag = "", shown = null, mine = {}, timer = 0, wait = EVERY;
  var id = phone();

  /** @param {string} name @returns {any} */
  function $(name) { return document.getElementById(name); }

  /** This phone's random id, kept so that a reload is no second phone. */
  function phone() {
    var made = "", numbers = new Uint8Array(20), letters = "abcdefghjkmnpqrstuvwxyz0123456789", i;
    try {
      var before = localStorage.getItem(KEY);
      if (before && /^[\w-]{16,40}$/.test(before)) return before;
    } catch (_) { /* a private window keeps nothing */ }
    if (window.crypto) window.crypto.getRandomValues(numbers);
    for (i = 0; i < numbers.length; i += 1) made += letters.charAt((numbers[i] + Math.floor(Math.random() * 256)) % letters.length);
    try { localStorage.setItem(KEY, made); } catch (_) { /* likewise */ }
    return made;
  }

  function say(text) { if ($("status").textContent !== text) $("status").textContent = text; }

  function ask(method, path, body, done) {
    var request = new XMLHttpRequest();
    request.open(method, room + path);
    request.timeout = 8000;
    if (tag && !body) request.setRequestHeader("If-None-Match", tag);
    if (body) request.setRequestHeader("Content-Type", "application/json");
    request.onload = function () { done(request.status, request); };
    request.onerror = request.ontimeout = function () { done(0, request); };
    request.send(body ? JSON.stringify(body) : null);
  }

  function poll() {
    clearTimeout(timer);
    if (document.hidden) return; // visibilitychange goes on
    ask("GET", "/now?id=" + id, null, function (status, request) {
      wait = EVERY;
      if (status === 200) {
        tag = request.getResponseHeader("ETag") || "";
        show(JSON.parse(request.responseText));
      } else if (status === 404 || status === 409) {
        $("form").hidden = $("named").hidden = true;
        tag = "";
        say(request.responseText);
        wait = SLOWEST;
      } else if (status !== 304) {
        say("No connection. Trying again …");
        tag = "";
        wait = SLOWEST / 2;
      }
      timer = setTimeout(poll, wait + Math.random() * 400);
    });
  }

  function answer(choice) {
    var number = shown.number, before = mine[number];
    mine[number] = choice;
    mark();
    say("Sending …");
    ask("POST", "/answer", { id: id, number: number, choice: choice, name: $("name").value.slice(0, 40) }, function (status, request) {
      if (shown.number !== number) return;
      if (status === 204) {
        say("Sent. You may change it while the question is open.");
        return;
      }
      if (status === 409) say(request.responseText);
      else say("Not sent. Choose again.");
      if (before === undefined) delete mine[number];
      else mine[number] = before;
      mark();
    });
  }

  /** Mark this phone's choice, and once it is told, the right one and what the class chose. */
  function mark() {
    var labels = $("choices").children, counts = shown.counts, most = counts ? Math.max.apply(null, counts.concat(1)) : 1, i;
    for (i = 0; i < labels.length; i += 1) {
      labels[i].className = (mine[shown.number] === i ? "mine" : "") + (shown.answer === i ? " right" : "");
      labels[i].children[0].checked = mine[shown.number] === i;
      labels[i].children[0].disabled = shown.state !== "open";
      labels[i].children[2].textContent = counts ? counts[i] + (shown.answer === i ? " ✓" : "") : "";
      labels[i].children[3].style.width = counts ? 100 * counts[i] / most + "%" : "0";
    }
  }

  function choice(text, number) {
    var label = document.createElement("label"), input = document.createElement("input");
    input.type = "radio";
    input.name = "choice";
    input.onchange = function () { answer(number); };
    label.appendChild(input);
    ["", "count", "bar"].forEach(function (name) {
      var part = document.createElement("span");
      part.className = name;
      label.appendChild(part);
    });
    label.children[1].textContent = text;
    return label;
  }

  function show(now) {
    var fresh = !shown || shown.number !== now.number;
    shown = now;
    $("title").textContent = now.title || "Class";
    $("form").hidden = !now.choices;
    $("named").hidden = false;
    if (now.choices && fresh) {
      $("question").textContent = now.question;
      $("choices").textContent = "";
      now.choices.forEach(function (text, number) { $("choices").appendChild(choice(text, number)); });
    }
    if (now.choices) mark();
    if (now.state === "wait") say("Look at the projector.");
    else if (now.state === "ready") say("A question comes next. Look at the projector.");
    else if (now.state === "open") say(now.number in mine ? "Sent. You may change it while the question is open." : "What do you expect?");
    else if (now.state === "closed") say("Closed. Look at the projector.");
    else if (!(now.number in mine)) say("The answer is marked.");
    else say(mine[now.number] === now.answer ? "You were right." : "The marked answer is right. Why?");
  }

  $("form").onsubmit = function (event) { event.preventDefault(); };
  $("name").onchange = function () { if (shown && shown.state === "open" && shown.number in mine) answer(mine[shown.number]); };
  document.addEventListener("visibilitychange", poll);
  poll();
})();
