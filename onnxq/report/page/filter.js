"use strict";
(function () {
  var form = document.getElementById("filter");
  if (!form) return;
  var text = document.getElementById("filter-text");
  var became = document.getElementById("filter-became");
  var count = document.getElementById("filter-count");
  var rows = Array.prototype.slice.call(document.querySelectorAll("#nodes tbody tr"));
  function apply() {
    var words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    var shown = 0;
    rows.forEach(function (row) {
      var content = row.textContent.toLowerCase();
      var fits = (!became.value || row.dataset.became === became.value) &&
        words.every(function (word) { return content.indexOf(word) >= 0; });
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    count.textContent = shown + " of " + rows.length + " nodes";
  }
  var body = document.querySelector("#nodes tbody");
  var heads = Array.prototype.slice.call(document.querySelectorAll("#nodes [data-sort] th"));
  function value(row, column) {
    var cell = row.cells[column];
    var number = cell.dataset.value;
    return number === undefined ? cell.textContent.toLowerCase() : number === "" ? Infinity : Number(number);
  }
  function sort(column) {
    var head = heads[column];
    var order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", order);
    var sign = order === "ascending" ? 1 : -1;
    rows.slice().sort(function (one, other) {
      var a = value(one, column), b = value(other, column);
      return a < b ? -sign : a > b ? sign : rows.indexOf(one) - rows.indexOf(other);
    }).forEach(function (row) { body.appendChild(row); });
  }
  heads.forEach(function (head, column) {
    var button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", function () { sort(column); });
    head.textContent = "";
    head.appendChild(button);
  });
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  apply();
})();
